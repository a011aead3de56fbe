"""Which scorer's rows the view `samples` shows, where an iteration was scored by several."""

from __future__ import annotations

import tomllib
from typing import Any, NamedTuple

from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse


class Choice(NamedTuple):
    """One complete score stage, whether `samples` shows it, and why."""

    iteration: int
    purpose: str
    scorer: str
    chosen: bool
    reason: str
    finished_at: float


def scorer_choices(warehouse: Warehouse) -> list[Choice]:
    """Every complete score stage; exactly one per (iteration, purpose) is chosen.

    In this order: the scorer named in RUN/config.toml (`[warehouse] scorer = "arc-v1"`, an identity or the
    name before its hash), the scorer whose rewards `train` used, the one that finished last.
    """
    named = named_scorer(warehouse)
    trained = {iteration: _trained_scorer(warehouse, iteration)
               for iteration in warehouse.iterations("train_steps")}
    choices = []
    for iteration in warehouse.iterations("samples"):
        for purpose in warehouse.purposes("samples", iteration):
            finished = _finished(warehouse, iteration, purpose)
            if not finished:
                continue
            scorer, reason = _choose(finished, named, trained, iteration)
            choices += [
                Choice(iteration, purpose, one, one == scorer, reason if one == scorer else "", finished[one])
                for one in sorted(finished)
            ]
    return choices


def named_scorer(warehouse: Warehouse) -> str | None:
    """The scorer that RUN/config.toml names under [warehouse], if any."""
    return read_config(warehouse).get("warehouse", {}).get("scorer")


def read_config(warehouse: Warehouse) -> dict[str, Any]:
    """RUN/config.toml; empty where there is none."""
    path = warehouse.root / "config.toml"
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise StageError(f"{path} is not valid TOML: {error}. Mend that line.") from error


def is_named(scorer: str, name: str) -> bool:
    """True if `name` is the scorer's identity, or its name without the hash."""
    return scorer == name or scorer.rpartition("-")[0] == name


def _finished(warehouse: Warehouse, iteration: int, purpose: str) -> dict[str, float]:
    """Complete scorers of one rollout and when each finished."""
    manifests: dict[str, dict[str, Any] | None] = {
        scorer: warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer).manifest()
        for scorer in warehouse.scorers(iteration, purpose)}
    return {scorer: manifest["finished_at"] for scorer, manifest in manifests.items() if manifest}


def _trained_scorer(warehouse: Warehouse, iteration: int) -> str | None:
    """The scorer whose rewards a complete train stage used."""
    manifest = warehouse.stage("train", iteration=iteration).manifest() or {}
    named = manifest.get("facts", {}).get("scorer") or (manifest.get("settings") or {}).get("scorer")
    return named if isinstance(named, str) else None


def _choose(finished: dict[str, float], named: str | None, trained: dict[int, str | None],
            iteration: int) -> tuple[str, str]:
    latest_first = sorted(finished, key=lambda scorer: -finished[scorer])
    if named:
        fitting = [scorer for scorer in latest_first if is_named(scorer, named)]
        if fitting:
            return fitting[0], "named in config.toml"
    # An evaluation, or an iteration not trained yet, follows the last training before it.
    before = [trained[number] for number in sorted(trained, reverse=True) if number <= iteration]
    for scorer in before:
        if scorer in finished:
            return scorer, "its rewards were trained on"
    return latest_first[0], "finished last" if len(finished) > 1 else "the only one"
