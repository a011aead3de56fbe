"""Commands that write new generations of stages: damage of the former ones stays damage."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.building import plain
from tests.building.runs import STARTER, TURN, arc_file, new_run, without_waiting
from tests.building.sound import check_run
from warehouse.cli import cli
from warehouse.maintain.tasks import add_tasks
from warehouse.store.run_folder import Warehouse, open_warehouse

COMMANDS = {"compact": ["compact"], "prune": ["prune", "--before", "2", "--yes"]}
COMPLETIONS, CARRIED = "completions/iteration=1/*/*/part-*", "completions/iteration=1/*/*/carried-*"
PROMPTS, SAMPLES = "prompts/iteration=1/*/*/part-*", "samples/iteration=1/*/*/*/part-*"
STEPS = "train/iteration=1/*/steps-*"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations, sampled in several parts, scored and trained; iteration 1 carried rows over."""
    run = new_run(tmp_path_factory.mktemp("rewrite") / "run", {f"t{number}": TURN for number in range(4)},
                  model=STARTER)
    with without_waiting():
        for iteration in range(3):
            plain.sample(run, **({"carry_over": "0.5"} if iteration == 1 else {}))
            plain.score(run)
            plain.train(run)
    return run.root


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Warehouse:
    return open_warehouse(shutil.copytree(whole, tmp_path / "run"))


def said(run: Warehouse, *words: str) -> Result:
    return CliRunner().invoke(cli, [words[0], str(run.root), *words[1:]])


def problems(run: Warehouse) -> list[str]:
    return check_run(open_warehouse(run.root)).problems


def rows(run: Warehouse) -> dict[str, int]:
    keys: dict[str, Any] = {"iteration": 1, "purpose": "train"}
    return {table: run.read(table, **keys).num_rows for table in ("completions", "carried", "prompts")} | {
        "samples": run.read("samples", **keys, scorer=plain.SCORER).num_rows}


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def flipped(path: Path, place: float = 0.3) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 4
    overwrite(path, bytes(content))


def swapped(path: Path) -> None:
    overwrite(path, path.with_name("part-00001.parquet").read_bytes())


def files(run: Warehouse) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in run.root.rglob("iteration=1/**/*") if path.is_file()}


@pytest.mark.parametrize(("command", "where", "damage"), [
    ("compact", PROMPTS, Path.unlink), ("compact", CARRIED, Path.unlink), ("compact", CARRIED, flipped),
    ("compact", COMPLETIONS, Path.unlink), ("compact", SAMPLES, flipped),
    ("prune", STEPS, Path.unlink), ("prune", COMPLETIONS, swapped), ("prune", SAMPLES, Path.unlink),
    ("prune", PROMPTS, lambda path: flipped(path, 0.99))])
def test_nothing_is_rewritten_from_damaged_parts(run: Warehouse, command: str, where: str,
                                                 damage: Callable[[Path], None]) -> None:
    part = min(run.root.glob(where))
    damage(part)
    before, found = files(run), problems(run)
    refused = said(run, *COMMANDS[command])
    assert refused.exit_code == 1 and refused.stderr.startswith(f"Error: {part} "), refused.output
    assert " its manifest" in refused.stderr or "the manifest of its stage lists it" in refused.stderr
    assert found and problems(run) == found
    assert files(run) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_part_beside_the_manifest_is_not_taken_over(run: Warehouse, command: str) -> None:
    before = rows(run)
    for where in (COMPLETIONS, PROMPTS, SAMPLES):
        part = min(run.root.glob(where))
        shutil.copy(part, part.with_name("part-00070.parquet"))
    done = said(run, *COMMANDS[command])
    assert done.exit_code == 0 and rows(run) == before, done.output


def test_a_repair_without_checksums_is_refused(run: Warehouse) -> None:
    gone, changed, *_ = sorted(run.root.glob(SAMPLES))
    gone.unlink()
    flipped(changed)
    refused = said(run, "check", "--fix", "--quick")
    assert refused.exit_code == 1 and "leave out --quick" in refused.stderr, refused.output
    assert said(run, "check", "--fix").exit_code == 0
    assert not {gone.name, changed.name} & {path.name for path in run.parts(
        "samples", iteration=1, purpose="train", scorer=plain.SCORER)}


def torn(path: Path) -> None:
    overwrite(path, path.read_bytes()[:40])


def drop_weights(run: Warehouse) -> None:
    assert said(run, "prune", "--keep-policies", "1", "--yes").exit_code == 0


def prune(run: Warehouse) -> None:
    assert said(run, *COMMANDS["prune"]).exit_code == 0


@pytest.mark.parametrize("damage", [Path.unlink, torn])
@pytest.mark.parametrize(("prepare", "where"), [
    (prune, "samples/iteration=1/*/*/*/manifest.json"),             # its completions have no tokens
    (drop_weights, "completions/iteration=1/*/*/manifest.json"),    # its policy cannot sample
    (lambda run: None, "train/iteration=1/*/manifest.json")])       # its policy was sampled from
def test_a_stage_that_cannot_be_made_again_is_not_opened_without_its_manifest(
        run: Warehouse, prepare: Callable[[Warehouse], None], where: str,
        damage: Callable[[Path], None]) -> None:
    prepare(run)
    manifest, = run.root.glob(where)
    sound = manifest.read_bytes()
    damage(manifest)
    damage(manifest.with_name("manifest-copy.json"))
    before = len(run.state.entries)
    told = said(run, "check", "--fix")
    assert told.exit_code == 1 and "from a copy\n" in told.stdout and "1 left" in told.stdout
    assert len(run.state.entries) == before
    manifest.unlink(missing_ok=True)
    manifest.write_bytes(sound)
    assert problems(run) == []


def of_another_stage(manifest: Path) -> None:
    root = next(folder for folder in manifest.parents if (folder / "warehouse.json").exists())
    other, = root.glob("samples/iteration=2/*/*/*/manifest.json")
    overwrite(manifest, other.read_bytes())


@pytest.mark.parametrize("prepare", [lambda run: None, prune])
@pytest.mark.parametrize("damage", [Path.unlink, torn, of_another_stage])
@pytest.mark.parametrize("where", ["completions/iteration=1/*/*", "train/iteration=1/*"])
def test_a_stage_gets_its_manifest_back(run: Warehouse, where: str, damage: Callable[[Path], None],
                                        prepare: Callable[[Warehouse], None]) -> None:
    prepare(run)
    before = rows(run)
    manifest, = run.root.glob(f"{where}/manifest.json")
    damage(manifest)
    told = said(run, "check", "--fix")
    assert told.exit_code == 0 and ", 0 left\n" in told.stdout, told.output
    assert rows(run) == before and problems(run) == []


def test_a_training_without_its_manifest_is_run_again_if_nobody_sampled_from_it(run: Warehouse) -> None:
    for manifest in run.root.glob("train/iteration=2/*/manifest*.json"):
        manifest.unlink()
    assert said(run, "check", "--fix").exit_code == 0
    plain.train(run)
    assert problems(run) == [] and run.state.newest == 3


def test_scores_of_pruned_completions_that_are_gone_can_only_be_restored(run: Warehouse) -> None:
    prune(run)
    shutil.rmtree(run.root / "samples/iteration=1")
    told = said(run, "check", "--fix")
    assert told.exit_code == 1 and "Restore it from a copy of the run; no stage" in told.stdout, told.output


def test_the_command_of_a_repair_is_taken_after_tasks_were_added(run: Warehouse) -> None:
    arc_file(run.root.parent, ["more"])
    add_tasks(run, (f"more={run.root.parent / 'more.json'}",), ())
    min(run.root.glob("completions/iteration=2/*/*/part-*")).unlink()
    told = said(run, "check", "--fix")
    command = f"rollout {run.root} --iteration 2 --accept-change tasks_sha256\n"
    assert f"To finish it: {command}" in told.stdout, told.output
    plain.sample(run, iteration=2, accept_change=("tasks_sha256",))
    plain.score(run)
    assert problems(run) == []
