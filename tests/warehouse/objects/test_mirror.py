"""`warehouse mirror`: a run copied to an object store and back, again and again."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from score.cli import score
from tests.building.object_server import keys
from tests.building.runs import add_policy, begin, small_run
from tests.building.sound import check_run
from tests.building.stored import on_machine, sample, weights
from tests.chaos.loop import contents
from tests.test_old_runs import ROOT, SCORER
from warehouse.cli import cli
from warehouse.maintain.compact import compact_run
from warehouse.maintain.rollback import roll_back
from warehouse.maintain.tasks import add_tasks
from warehouse.objects.bucket import Bucket
from warehouse.objects.mirror import mirror_run
from warehouse.store.commit import TWINS
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture
def local(tmp_path: Path):
    """A sampled run on the disk, with a second policy."""
    warehouse = small_run(tmp_path, num_tasks=4)
    sample(warehouse)
    add_policy(warehouse, 1, weights(warehouse, 1, "weights"))
    yield warehouse
    TWINS.clear()


def test_a_mirrored_run_is_the_same_run_there_and_back(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = CliRunner().invoke(cli, ["mirror", str(local.root), address])
    assert ended.exit_code == 0 and "files copied to" in ended.output and ", 0 were there" in ended.output
    there = on_machine("a", address, tmp_path, monkeypatch)
    there.verify_policy(1)
    assert contents(there) == contents(local) and check_run(there).problems == []
    sample(there, policy_version=0)     # the next iteration, on another machine
    mirror_run(address, str(tmp_path / "back"))
    back = open_warehouse(tmp_path / "back")
    assert contents(back) == contents(there) and check_run(back).problems == []
    back.verify_policy(1)
    assert (back.root / "config.toml").stat().st_mode & 0o200, "it is meant to be edited"
    assert back.state.iterations("rollout") == [0, 1]
    assert mirror_run(address, str(back.root)).startswith("0 files copied")


def test_a_run_of_version_0_2_0_is_read_in_a_store(
        address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests" / "fixtures" / "run-0.2.0", tmp_path / "run")
    mirror_run(str(tmp_path / "run"), address)
    there = on_machine("a", address, tmp_path, monkeypatch)
    assert check_run(there).problems == []
    assert contents(there) == contents(open_warehouse(tmp_path / "run"))
    assert there.read("samples", ["reward"], iteration=1, purpose="train", scorer=SCORER).num_rows == 12
    TWINS.clear()


@pytest.mark.slow("two rollouts")
def test_a_second_mirror_copies_what_is_new_or_changed(local: Warehouse, address: str) -> None:
    mirror_run(str(local.root), address)
    assert mirror_run(str(local.root), address).startswith("0 files copied")
    compact_run(local)
    assert not mirror_run(str(local.root), address).startswith("0 files copied")
    sample(local, policy_version=0)
    mirror_run(str(local.root), address)
    assert mirror_run(address, str(local.root.parent / "back")).endswith(", 0 were there already")
    assert contents(open_warehouse(local.root.parent / "back")) == contents(local)


def test_what_care_replaced_is_replaced_by_the_next_mirror_both_ways(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = local.read("completions", iteration=0, purpose="train")
    add_policy(local, 2, weights(local, 2, "others"))
    mirror_run(str(local.root), address)
    mirror_run(address, str(tmp_path / "back"))
    there = on_machine("a", address, tmp_path, monkeypatch)
    compact_run(there)
    roll_back(there, 1)
    mirror_run(address, str(tmp_path / "back"))
    back = open_warehouse(tmp_path / "back")
    back.verify_policy(2)
    assert (back.policy_dir(2) / "adapter_model.safetensors").read_text() == "weights"
    assert check_run(back).problems == [] and len(list(back.root.glob("completions/**/*.parquet"))) == 1
    assert back.read("completions", iteration=0, purpose="train") == before
    roll_back(local, 1)                 # both went on
    with pytest.raises(StageError, match="has log entries that the run to copy lacks"):
        mirror_run(str(local.root), address)


def test_the_branch_that_a_rollback_names_is_made_here_of_a_run_in_a_store(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror_run(str(local.root), address)
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(cli, ["rollback", address, "--to", "0"]).output
    words = shlex.split(said.partition("to train iteration 0 again: warehouse ")[2].splitlines()[0])
    for said in (" copied, ", "nothing to do"):
        made = CliRunner().invoke(cli, words)
        assert made.exit_code == 0 and said in made.output, made.output
    shutil.rmtree(tmp_path / "cache")
    TWINS.clear()
    branch = open_warehouse(tmp_path / words[2])
    assert check_run(branch).problems == [] and branch.state.newest == 0
    rows = {"iteration": 0, "purpose": "train"}
    assert branch.read("completions", **rows) == local.read("completions", **rows)


def test_gold_is_judged_of_a_run_in_a_store(local: Warehouse, address: str, tmp_path: Path) -> None:
    mirror_run(str(local.root), address)
    solution = {"task_id": "t0", "code": "def transform(grid): return grid"}
    (tmp_path / "gold.jsonl").write_text(json.dumps(solution))
    judged = [CliRunner().invoke(score, ["gold", run, str(tmp_path / "gold.jsonl")]).output
              for run in (str(local.root), address)]
    assert judged[0] == judged[1] and "of 1 canonical solution" in judged[0]


@pytest.mark.parametrize("table", ["completions", "policies"])
def test_what_is_missing_is_not_removed_from_the_copy(local: Warehouse, address: str, tmp_path: Path,
                                                      table: str) -> None:
    mirror_run(str(local.root), address)
    mirror_run(address, str(tmp_path / "back"))
    there = keys(address)
    (local.root / table).rename(tmp_path / "elsewhere")
    for to in (address, f"{address}-2"):
        with pytest.raises(StageError, match=f"^{table}/.* is missing from the run to copy"):
            mirror_run(str(local.root), to)
    assert keys(address) == there and not keys(f"{address}-2")
    Bucket(address).delete([key for key in there if key.startswith(table)])
    with pytest.raises(StageError, match=f"^{table}/.* is missing from the run to copy"):
        mirror_run(address, str(tmp_path / "back"))
    assert check_run(open_warehouse(tmp_path / "back")).problems == []


def test_what_may_not_be_read_is_not_taken_for_empty(local: Warehouse, address: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refusing(path: object) -> object:
        if "iteration=0" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError):
        mirror_run(str(local.root), address)
    assert keys(address) == []


@pytest.mark.parametrize("last", ["manifest.json", "policy.json", "warehouse.json"])
def test_a_mirror_that_is_killed_shows_nothing_that_is_not_there(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    put = Bucket.put

    def dying(bucket: Bucket, key: str, content: Path | bytes) -> object:
        if key.endswith(last):
            raise KeyboardInterrupt
        return put(bucket, key, content)
    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            mirror_run(str(local.root), address)
    there = keys(address)
    assert "warehouse.json" not in there and sum(key.endswith(".parquet") for key in there) == 4
    assert sum("policies/1/" in key and key.endswith(".safetensors") for key in there) == 1
    mirror_run(str(local.root), address)
    there = on_machine("a", address, tmp_path, monkeypatch)
    there.verify_policy(1)
    assert contents(there) == contents(local)


@pytest.mark.slow("two rollouts")
def test_no_mirror_goes_over_another_run_or_over_one_that_went_on(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = small_run(tmp_path / "other", num_tasks=2)
    mirror_run(str(local.root), address)
    with pytest.raises(StageError, match="is another run"):
        mirror_run(str(other.root), address)
    with pytest.raises(StageError, match="is another run"):
        mirror_run(address, str(other.root))
    sample(on_machine("a", address, tmp_path, monkeypatch), policy_version=0)
    with pytest.raises(StageError, match=r"that the run to copy lacks .*: another command continued there"):
        mirror_run(str(local.root), address)
    with pytest.raises(StageError, match="one of the two must be s3://BUCKET/RUN"):
        mirror_run(str(local.root), str(other.root))


def test_a_folder_that_is_no_run_keeps_its_files(local: Warehouse, address: str, tmp_path: Path) -> None:
    mirror_run(str(local.root), address)
    other = tmp_path / "project"
    (other / "train").mkdir(parents=True)
    (other / "config.toml").write_text("own = true\n")
    (other / "train" / "code.py").write_text("work")
    with pytest.raises(StageError, match=r"is not a run and has config.toml"):
        mirror_run(address, str(other))
    Bucket(f"{address}-other").put("config.toml", b"own = true")
    with pytest.raises(StageError, match=r"is not a run and has config.toml"):
        mirror_run(str(local.root), f"{address}-other")
    assert (other / "train" / "code.py").read_text() == "work"
    assert (other / "config.toml").read_text() == "own = true\n"


def test_no_mirror_goes_over_what_both_sides_made(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror_run(str(local.root), address)
    add_tasks(local, ("synthetic:1:6",), ())
    mirror_run(str(local.root), address)
    there = on_machine("a", address, tmp_path, monkeypatch)
    local = open_warehouse(local.root)
    assert there.read("tasks") == local.read("tasks")
    add_tasks(there, ("synthetic:1:7",), ())
    with pytest.raises(StageError, match=r"has log entries that the run to copy lacks"):
        mirror_run(str(local.root), address)
    add_tasks(local, ("synthetic:1:8",), ())
    for ends in ((str(local.root), address), (address, str(local.root))):
        with pytest.raises(StageError, match=r"have different _log/"):
            mirror_run(*ends)


def test_no_mirror_replaces_an_iteration_that_both_sides_sampled(
        local: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror_run(str(local.root), address)
    there = on_machine("a", address, tmp_path, monkeypatch)
    for run in (there, local):
        sample(run, policy_version=0)
    before = there.read("completions", iteration=1, purpose="train")
    for ends in ((str(local.root), address), (address, str(local.root))):
        with pytest.raises(StageError, match=r"have different _log/"):
            mirror_run(*ends)
    assert on_machine("b", address, tmp_path, monkeypatch).read(
        "completions", iteration=1, purpose="train") == before


def test_what_is_under_way_on_both_sides_loses_no_part(local: Warehouse, address: str) -> None:
    stage = begin(local, "rollout", iteration=1, purpose="train")
    folder = stage.folder.relative_to(local.root).as_posix()
    stage.folder.mkdir(parents=True)
    (stage.folder / "part-00000.parquet").write_text("{}")
    mirror_run(str(local.root), address)
    for name in ("part-00000.parquet", "part-00001.parquet"):
        Bucket(address).put(f"{folder}/{name}", b"another")
    mirror_run(str(local.root), address)
    assert f"{folder}/part-00001.parquet" in keys(address)
