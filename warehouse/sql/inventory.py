"""The current files of each table: parts of complete stages, without those that the rollup holds."""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.ledger.state import Choice, is_named
from warehouse.sql.rollup_files import Rollup, valid_rollup
from warehouse.sql.verified import find_damage
from warehouse.sql.vocabulary import FILE, vocabulary_file
from warehouse.store.commit import ensure_local
from warehouse.store.config_file import named_scorer
from warehouse.store.errors import StageError, check_addresses, shell_quote
from warehouse.store.manifests import Listed, listed_parts
from warehouse.store.run_folder import TABLES_OF, Stage, Warehouse
from warehouse.store.schema import SCHEMA_VERSION

UNFINISHED = "is not complete, but stages made from it are."
ADDRESSES = 1.2  # GiB; with less DuckDB aborts on two cores


class Held(NamedTuple):
    """A stage, its manifest if it is complete, and its parts."""

    stage: Stage
    manifest: dict[str, Any] | None
    parts: Listed
    damaged: bool = False


class Inventory(NamedTuple):
    """The state of a run from which its SQL is made."""

    parts: defaultdict[str, list[Path]]
    choices: list[Choice]
    rollup: Rollup | None
    stages: list[Held]
    policies: list[tuple[Path, dict[str, Any]]]  # policy.json of each version: file and content
    left_out: list[str]  # what is unreadable, and why
    vocabulary: Path | None = None
    schema_version: int = SCHEMA_VERSION  # lower bound over all parts

    @property
    def manifests(self) -> list[Path]:
        return [held.stage.folder / "manifest.json" for held in self.stages if held.manifest is not None]


def take_inventory(warehouse: Warehouse, *, partial: bool = False, iteration: int | None = None) -> Inventory:
    """Everything complete and sound; with `partial` also parts of unfinished stages, and no rollup."""
    check_addresses(ADDRESSES, "DuckDB")
    left_out: list[str] = []
    tasks, stages = _sound_stages(warehouse, left_out, partial, iteration)
    sound = {(held.stage.identity["iteration"], held.stage.identity["purpose"], held.stage.identity["scorer"])
             for held in stages if held.stage.name == "score" and held.manifest and not held.damaged}
    named = named_scorer(warehouse.root)
    choices = warehouse.state.scorer_choices(named, sound)
    scorers = sorted({choice.scorer for choice in choices})
    if named and scorers and iteration is None and not any(is_named(scorer, named) for scorer in scorers):
        left_out.append(f"config.toml names the scorer {named}, but the scores here are by "
                        f"{', '.join(scorers)}: name one of these, or `score` with {named}.")
    rollup = None if partial or iteration is not None else valid_rollup(warehouse, choices)
    parts = _parts_of_tables(stages, choices, rollup, partial) | {"tasks": tasks}
    vocabulary = vocabulary_file(warehouse)
    if vocabulary is None and (warehouse.root / FILE).exists():     # in an archive without its base model
        left_out.append(f"{warehouse.root / FILE} cannot be read: there are no texts of tokens. Restore it.")
    return Inventory(parts, choices, rollup, stages, _policies(warehouse, left_out), left_out, vocabulary,
                     warehouse.facts.get("oldest_part", warehouse.facts["schema_version"]))


def _parts_of_tables(stages: list[Held], choices: list[Choice], rollup: Rollup | None,
                     partial: bool) -> defaultdict[str, list[Path]]:
    """The files of each table, of `fresh_` ones without those that the rollup holds."""
    parts = defaultdict[str, list[Path]](list)
    chosen = {(choice.iteration, choice.purpose, choice.scorer) for choice in choices if choice.chosen}
    scored = {key[:2] for key in chosen}
    for held in stages:
        name, keys = held.stage.name, held.stage.identity
        if held.manifest is None and not partial:
            continue
        if name != "score":
            for part in held.parts:
                parts[table_of(held.stage, part)].append(part)
        if name == "train" and not (rollup and keys["iteration"] in rollup.trained):
            parts["fresh_train_samples"] += [part for part in held.parts if part.name.startswith("samples-")]
        if name == "score":
            rollout = keys["iteration"], keys["purpose"]
            parts["all_samples"] += held.parts
            if (*rollout, keys["scorer"]) in chosen or (held.manifest is None and rollout not in scored):
                parts["samples"] += held.parts
                parts["fresh_samples"] += [] if rollup and rollout in rollup.scored else held.parts
    return parts


def table_of(stage: Stage, part: Path) -> str:
    if stage.name == "rollout":
        return "prompts" if part.parent == stage.prompts else (
            "carried" if part.name.startswith("carried-") else "completions")
    return f"train_{part.name.partition('-')[0]}" if stage.name == "train" else TABLES_OF[stage.name][0]


def _sound_stages(warehouse: Warehouse, left_out: list[str], partial: bool,
                  iteration: int | None) -> tuple[list[Path], list[Held]]:
    """The parts of tasks, and every stage with its parts in order, without damaged ones (reported)."""
    stages = _listed_stages(warehouse, left_out, iteration)
    tasks: Listed = {part: {} for part in warehouse.parts("tasks")}
    if not tasks:
        left_out.append(f"{warehouse.folder('tasks')} holds no tasks. Restore it from a copy of the run.")
    wanted = tasks | {part: facts for held in stages if held.manifest for part, facts in held.parts.items()}
    ensure_local([*wanted, *(part for held in stages if partial for part in held.parts)])
    damage = find_damage(warehouse, wanted)
    left_out += [f"{part} {damage[part]}: there are no tasks. Restore it from a copy of the run."
                 for part in tasks if part in damage]
    stages = [_without_damage(held, damage, left_out) for held in stages]
    left_out += [f"{held.stage.title} {UNFINISHED} Until then it is left out: `warehouse check` says what to "
                 "run." for held in stages
                 if not (held.manifest or partial) and warehouse.state.is_built_upon(held.stage.life)]
    return [part for part in tasks if part not in damage], stages


def _listed_stages(warehouse: Warehouse, left_out: list[str], iteration: int | None) -> list[Held]:
    """Every stage with a readable manifest, and its parts."""
    stages = []
    for stage in warehouse.stages(iteration):
        try:
            manifest = stage.manifest()
            stages.append(Held(stage, manifest, _parts_of(stage, manifest)))
        except StageError as error:
            left_out.append(f"{error} Until then {stage.title} is left out.")
    return stages


def _without_damage(held: Held, damage: dict[Path, str], left_out: list[str]) -> Held:
    """The stage, without parts if one of them is damaged; this is reported."""
    bad = [part for part in held.parts if part in damage]
    again = held.stage.readable_manifest() if bad else None
    if again is not None and again != held.manifest:  # `warehouse compact` merged the parts meanwhile
        return Held(held.stage, again, _parts_of(held.stage, again))
    if not bad:
        return held
    left_out.append(f"{bad[0]} {damage[bad[0]]}: {held.stage.title} is left out. `warehouse check "
                    f"{shell_quote(held.stage.warehouse.root)}` says what to do.")
    return held._replace(parts={}, damaged=True)


def _parts_of(stage: Stage, manifest: dict[str, Any] | None) -> Listed:
    parts = listed_parts(stage.folder, manifest)
    return parts | listed_parts(stage.prompts, manifest, "prompts") if stage.prompts else parts


def _policies(warehouse: Warehouse, left_out: list[str]) -> list[tuple[Path, dict[str, Any]]]:
    """Every readable policy.json; a copy made by a rollback under its version. With the factor of rescues."""
    documents = []
    ensure_local(warehouse.policy_dir(version) / "policy.json" for version in warehouse.state.versions)
    for version in warehouse.state.versions:
        try:
            factor = warehouse.state.rate(version)
            documents.append((warehouse.policy_dir(version) / "policy.json", warehouse.policy(version)
                              | ({} if factor == 1 else {"learning_rate_factor": factor})))
        except StageError as error:
            left_out.append(f"{error} Until then policy {version} is left out.")
    return documents
