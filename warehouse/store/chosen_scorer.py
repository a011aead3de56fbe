"""Which scorer's rows count where an iteration was scored by several: one rule for all who read scores.

In this order: the scorer that an option names, that which RUN/config.toml names (`[warehouse]`
`scorer = "arc-v1"`), that whose rewards the last training up to the iteration used, that which finished
last. A name is an identity, or what stands before its hash, and then means the newest of that name. `train`
asks for a name where only the last of these would decide.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage

LATEST = "finished last"


class Choice(NamedTuple):
    """One complete score stage, whether its rows count, and why."""

    iteration: int
    purpose: str
    scorer: str
    chosen: bool
    reason: str
    finished_at: float


def scorer_choices(warehouse: Warehouse, complete: list[tuple[Stage, dict[str, Any]]]) -> list[Choice]:
    """Every score among complete stages and their manifests; one per (iteration, purpose) is chosen."""
    named = named_scorer(warehouse)
    trained = [(stage.identity["iteration"], trained_scorer(manifest))
               for stage, manifest in reversed(complete) if stage.name == "train"]
    scores: dict[tuple[int, str], dict[str, float]] = {}
    for stage, manifest in complete:
        if stage.name == "score":
            iteration, purpose, scorer = stage.identity.values()
            scores.setdefault((iteration, purpose), {})[scorer] = manifest["finished_at"]
    choices = []
    for (iteration, purpose), finished in scores.items():
        before = (scorer for number, scorer in trained if number <= iteration)
        scorer, reason = _choose(finished, named, before)
        choices += [Choice(iteration, purpose, name, name == scorer, reason if name == scorer else "",
                           finished[name]) for name in finished]
    return choices


def choose_scorer(warehouse: Warehouse, iteration: int, purpose: str, name: str | None) -> tuple[str, str]:
    """The scorer of one iteration whose rows count, and why; with a `name`, one of that name.

    StageError if nothing is scored, or not by a scorer of that name.
    """
    scores = [warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer)
              for scorer in warehouse.scorers(iteration, purpose)]
    finished = {stage.identity["scorer"]: manifest["finished_at"] for stage in scores
                if (manifest := stage.manifest())}
    if not finished:
        raise StageError(f"Iteration {iteration} ({purpose}) is not scored. Run `score "
                         f"{shell_quote(warehouse.root)} --iteration {iteration}` first.")
    if name and not any(is_named(scorer, name) for scorer in finished):
        raise StageError(f"Scorer '{name}' has not scored iteration {iteration} ({purpose}); "
                         f"{', '.join(sorted(finished))} did. Name one of these with --scorer, or `score "
                         f"{shell_quote(warehouse.root)} --iteration {iteration}`.")
    before = (trained_scorer(warehouse.stage("train", iteration=number).manifest() or {})
              for number in reversed(warehouse.iterations("train_steps")) if number <= iteration)
    return _choose(finished, name or named_scorer(warehouse), before)


def named_scorer(warehouse: Warehouse) -> str | None:
    """The scorer that RUN/config.toml names under [warehouse], if any."""
    return read_config(warehouse.root / "config.toml").get("warehouse", {}).get("scorer")


def is_named(scorer: str, name: str) -> bool:
    """True if `name` is the scorer's identity, or its name without the hash."""
    return scorer == name or scorer.rpartition("-")[0] == name


def trained_scorer(manifest: dict[str, Any]) -> str | None:
    """The scorer whose rewards a training used, by its manifest."""
    named = manifest.get("facts", {}).get("scorer") or (manifest.get("settings") or {}).get("scorer")
    return named if isinstance(named, str) else None


def _choose(finished: dict[str, float], named: str | None, trained: Iterable[str | None]) -> tuple[str, str]:
    """One of the scorers that finished and why; `trained` are those of the trainings before, latest first."""
    latest_first = sorted(finished, key=lambda scorer: (scorer != named, -finished[scorer]))
    for scorer in latest_first if named else []:
        if is_named(scorer, named or ""):
            return scorer, "named in config.toml"
    for before in trained:
        if before in finished:
            return str(before), "its rewards were trained on"
    return latest_first[0], LATEST if len(finished) > 1 else "the only one"
