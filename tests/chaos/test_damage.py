"""Files that a disk, a person or another version damaged: found by check, left out, made again."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.building.runs import back_before, change_document
from tests.chaos.kills import Step, to_the_end
from tests.chaos.loop import contents, leftovers, new_run, problems
from warehouse.cli import cli
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION

STAGES = [Step(name, iteration) for iteration in (0, 1) for name in ("rollout", "score", "train")]
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A run after one whole iteration and the rollout of the next."""
    warehouse = new_run(tmp_path_factory.mktemp("damage") / "run")
    for step in STAGES[:4]:
        assert to_the_end(step, warehouse).code == 0
    return warehouse


@pytest.fixture
def run(whole: Warehouse, tmp_path: Path) -> Warehouse:
    return open_warehouse(shutil.copytree(whole.root.parent, tmp_path / "copy") / "run")


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def torn(path: Path) -> None:
    overwrite(path, path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    overwrite(path, bytes(content))


def emptied(path: Path) -> None:
    overwrite(path, b"")


def missing(path: Path) -> None:
    path.unlink()


def newer(path: Path, version: int = SCHEMA_VERSION + 1) -> None:
    table = pq.read_table(path)
    path.unlink()
    metadata = {**table.schema.metadata, b"rollhouse.schema_version": str(version).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def older(path: Path) -> None:
    newer(path, OLDEST_VERSION - 1)


def fix_all(run: Warehouse) -> None:
    done = CliRunner().invoke(cli, ["check", str(run.root), "--fix"])
    assert done.exit_code == 0, done.output


def completions(run: Warehouse) -> Path:
    return run.folder("completions", iteration=0, purpose="train")


def prompts(run: Warehouse) -> Path:
    return run.folder("prompts", iteration=0, purpose="train")


def samples(run: Warehouse) -> Path:
    [scorer] = [str(life.scorer) for life in run.state.of_stage("score", 0, "train")]
    return run.folder("samples", iteration=0, purpose="train", scorer=scorer)


@pytest.mark.parametrize(("where", "damage"), [
    *(("completions", damage) for damage in (torn, flipped, missing, older)), ("samples", torn),
    *(pytest.param(table, damage, marks=pytest.mark.slow("one way to read parts serves every table"))
      for table, damage in (("completions", newer), ("samples", flipped), ("samples", missing),
                            ("samples", newer), ("samples", older)))])
def test_a_damaged_part_is_found_left_out_and_made_again(whole: Warehouse, run: Warehouse, damage: Damage,
                                                          where: str) -> None:
    folder = completions(run) if where == "completions" else samples(run)
    damage(folder / "part-00001.parquet")
    assert any("part-00001.parquet" in problem for problem in problems(run))
    shown = CliRunner().invoke(cli, ["check", str(run.root)])
    assert shown.exit_code == 1 and "`warehouse check --fix` would go on without" in shown.output
    fixed = CliRunner().invoke(cli, ["check", str(run.root), "--fix", "--iteration", "0"])
    assert fixed.exit_code == 0, fixed.output
    assert ("policy 1 stays" in fixed.output) == (where == "completions")
    assert folder.exists() and folder not in (completions(run), samples(run))
    for step in STAGES[:2] if where == "completions" else STAGES[1:2]:
        assert to_the_end(step, run).code == 0
    assert contents(run) == contents(whole)
    assert problems(run) == leftovers(run) == []


@pytest.mark.parametrize("damage", [torn, missing])
def test_damaged_prompts_are_drawn_again_and_their_completions_stay(whole: Warehouse, run: Warehouse,
                                                                    damage: Damage) -> None:
    sampled = {path.name: path.read_bytes() for path in completions(run).glob("part-*")}
    damage(prompts(run) / "part-00000.parquet")
    assert problems(run)
    fix_all(run)
    assert to_the_end(STAGES[0], run).code == 0
    assert {path.name: path.read_bytes() for path in completions(run).glob("part-*")} == sampled
    assert contents(run) == contents(whole)
    assert problems(run) == leftovers(run) == []


def test_a_missing_part_stops_whoever_reads_it(run: Warehouse) -> None:
    """The stage after it must not go on with fewer rows."""
    run.part_path("completions", 1, iteration=1, purpose="train").unlink()
    stopped = to_the_end(STAGES[4], run)
    assert stopped.code == 1 and "part-00001.parquet is missing" in stopped.output
    assert "Traceback" not in stopped.output


def test_a_part_beside_those_of_the_manifest_is_left_out(run: Warehouse, tmp_path: Path) -> None:
    shutil.copy(completions(run) / "part-00000.parquet", completions(run) / "part-00007.parquet")
    assert len(problems(run)) == 1
    before = contents(run)
    fix_all(run)
    assert contents(run) == before
    assert problems(run) == leftovers(run) == []
    assert run.stage("rollout", iteration=0, purpose="train").is_complete()


def test_a_damaged_document_is_one_sentence_and_made_again(whole: Warehouse, run: Warehouse) -> None:
    torn(completions(run) / "manifest.json")
    assert ["is damaged" in problem for problem in problems(run)] == [True]
    fix_all(run)
    assert to_the_end(STAGES[0], run).code == 0
    assert contents(run) == contents(whole)
    assert problems(run) == []


def test_damage_of_a_policy_that_was_sampled_from_is_not_hidden_by_training_it_again(run: Warehouse) -> None:
    flipped(run.policy_dir(1) / "adapter_model.safetensors")
    assert any("were changed or damaged" in problem for problem in problems(run))
    done = CliRunner().invoke(cli, ["check", str(run.root), "--fix"])
    assert "later rows were sampled from it" in done.output and done.exit_code == 1
    assert run.policy_dir(1).exists()


@pytest.mark.parametrize("damage", [
    flipped, *(pytest.param(damage, marks=pytest.mark.slow("the rest is the same for every damage"))
               for damage in (missing, emptied))])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "optimizer.pt"])
def test_each_file_of_a_policy_is_verified_where_it_decides(run: Warehouse, name: str,
                                                            damage: Damage) -> None:
    damage(run.policy_dir(1) / name)
    assert any(str(run.policy_dir(1)) in problem for problem in problems(run))
    assert to_the_end(STAGES[4], run).code == 0     # the policy that sampled is not asked again
    if name == "optimizer.pt":
        stopped = to_the_end(STAGES[5], run)
        said = "is missing" if damage is missing else "was changed or damaged"
        assert stopped.code == 1 and said in stopped.output, stopped.output
        assert 2 not in run.state.versions


@pytest.mark.slow("an iteration is sampled, scored and trained once more")
def test_damage_of_a_training_nobody_sampled_from_is_trained_again(whole: Warehouse, run: Warehouse) -> None:
    back_before(run, "rollout", iteration=1, purpose="train")
    run = open_warehouse(run.root)
    flipped(run.policy_dir(1) / "adapter_model.safetensors")
    stopped = to_the_end(STAGES[3], run)
    assert stopped.code == 1 and "were changed or damaged" in stopped.output      # nothing is sampled from it
    fix_all(run)
    assert run.state.versions == [0] and run.state.due().stage == "train"
    for step in STAGES[2:4]:
        assert to_the_end(step, run).code == 0
    assert contents(run) == contents(whole)
    assert problems(run) == []


def test_lost_rows_of_a_training_that_cannot_be_repeated_are_named_for_good(run: Warehouse) -> None:
    torn(run.part_path("train_samples", 0, iteration=0))
    fix_all(run)
    assert (run.stage("train", iteration=0).manifest() or {})["lost"] == ["samples-00000.parquet"]
    assert run.read("train_samples", iteration=0).num_rows == 0
    assert problems(run) == []


@pytest.mark.parametrize("folder", [completions, prompts])
def test_a_compacted_rollout_with_damage_is_sampled_again_whole(
        whole: Warehouse, run: Warehouse, folder: Callable[[Warehouse], Path]) -> None:
    assert to_the_end(Step("compact", 0), run).code == 0
    flipped(folder(run) / "part-00000.parquet")
    fix_all(run)
    for step in STAGES[:2]:
        assert to_the_end(step, run).code == 0
    assert contents(run) == contents(whole)
    assert problems(run) == leftovers(run) == []


def test_a_damaged_manifest_of_merged_parts_comes_back(run: Warehouse) -> None:
    assert to_the_end(Step("compact", 0), run).code == 0
    before = contents(run)
    torn(completions(run) / "manifest.json")
    fix_all(run)
    assert contents(run) == before
    assert problems(run) == leftovers(run) == []


def test_a_run_of_another_schema_version_is_refused(run: Warehouse) -> None:
    for version in (OLDEST_VERSION - 1, SCHEMA_VERSION + 1):
        change_document(run.root / "warehouse.json", schema_version=version)
        refused = CliRunner().invoke(cli, ["check", str(run.root)])
        assert refused.exit_code == 1 and f"has schema version {version}" in refused.output
