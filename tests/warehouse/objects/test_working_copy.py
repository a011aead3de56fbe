"""Runs in an object store: what one machine commits every other sees, and nobody loses a row."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollout.prompts.selection import training_visits
from score.cli import score
from tests.building import runs
from tests.building.object_server import STORE, keys
from tests.building.runs import small_run
from tests.building.sound import check_run
from tests.building.stored import on_machine, sample, stored_run, weights
from tests.chaos.loop import contents
from train.cli import train
from train.inputs.asked import model_of_policy
from warehouse.cli import cli
from warehouse.ledger.entries import WeightsDropped
from warehouse.maintain.prune import prune_policies
from warehouse.maintain.rollback import roll_back
from warehouse.objects.bucket import Bucket
from warehouse.objects.working_copy import PACKS, WorkingCopy
from warehouse.sql.database import connect
from warehouse.stages.shard import Shard
from warehouse.store.commit import TWINS, commit_bytes
from warehouse.store.errors import SettingChanged, StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

KEYS = {"iteration": 0, "purpose": "train"}


@pytest.fixture
def machine(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opens the run as a machine of that name."""
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "a"))
    stored_run(address, tmp_path)
    yield partial(on_machine, address=address, folder=tmp_path, monkeypatch=monkeypatch)
    TWINS.clear()


def test_a_sentence_names_the_address_as_it_was_typed(address: str) -> None:
    for words in (["branch", address, "new", "--at", "0"],
                  ["init", STORE.rpartition("/")[0] + "/?", "--model", "m", "--tasks", "t"]):
        ended = CliRunner().invoke(cli, words)
        assert ended.exit_code == 1 and ended.output.startswith(f"Error: {words[1]} is not a")


def test_two_workers_with_caches_of_their_own_share_a_rollout(machine, tmp_path: Path) -> None:
    alone = small_run(tmp_path / "alone", num_tasks=8)
    sample(alone)
    first, second = machine("a"), machine("b")
    sample(first, Shard(0, 2))
    assert not first.stage("rollout", **KEYS).is_complete()
    assert not list(second.root.rglob("*.parquet"))       # nothing that is not asked for is brought
    sample(second, Shard(1, 2))
    assert second.stage("rollout", **KEYS).is_complete()
    third = machine("c")
    assert training_visits(third, before=1) == training_visits(alone, before=1) != {}
    assert contents(third) == contents(alone)
    assert check_run(third).problems == []
    assert not [key for key in keys(f"{STORE}/{third.root.name}") if ".tmp-" in key or "spill" in key]


def test_score_names_the_address_of_a_run_without_completions(machine, address: str) -> None:
    machine("a")
    early = CliRunner().invoke(score, [address])
    assert early.exit_code == 1 and early.output.startswith(f"Error: {address} has no completions to score.")
    assert f" in {address}. There are: none" in CliRunner().invoke(score, ["diff", address, "a", "b"]).output
    sample(machine("b"), Shard(999, 1000))
    early = CliRunner().invoke(score, [address])
    assert early.exit_code == 75 and early.output.startswith(f"{address} has no completions to score yet")


@pytest.mark.slow("two scores, each with lanes of its own")
def test_what_a_rollout_left_is_scored_and_the_rest_later_on_another_machine(
        machine, address: str) -> None:
    sample(machine("a"), Shard(0, 2))
    done = CliRunner().invoke(score, [address, "--iteration", "0"])
    assert done.exit_code == 75 and "its parts so far are scored" in done.output
    assert len([key for key in keys(address) if re.fullmatch("samples/.*/part-.*", key)]) == 2
    other = machine("b")
    sample(other, Shard(1, 2))
    assert CliRunner().invoke(score, [address]).exit_code == 0
    again = CliRunner().invoke(score, [address])
    assert again.output.endswith(f" has scored every complete rollout of {address}.\n")
    third = machine("c")
    scorer, = third.state.scorers(0, "train")
    rows = third.read("samples", ["task_id", "sample_index"], **KEYS, scorer=scorer).to_pylist()
    assert len(rows) == len({(row["task_id"], row["sample_index"]) for row in rows}) == 32


def test_sql_over_one_iteration_brings_no_part_of_another(machine, address: str) -> None:
    sample(machine("a"))
    fresh = machine("b")
    connect(fresh, iteration=1)
    assert not list(fresh.root.glob("completions/**/*.parquet"))
    assert not (fresh.root / "warehouse.sql").exists()
    [(number,)] = connect(fresh, iteration=0).execute("SELECT count(*) FROM completions").fetchall()
    assert number == 32 and list(fresh.root.glob("completions/**/*.parquet"))


def test_of_many_machines_one_commits_a_file_and_all_have_its_content(machine) -> None:
    copies = [machine(str(number)).root for number in range(8)]
    paths = [root / "tasks" / "part-00001.parquet" for root in copies]
    for path in paths:
        path.unlink(missing_ok=True)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda path: commit_bytes(path, str(path).encode()), paths))
    assert won.count(True) == 1
    assert {path.read_bytes() for path in paths} == {str(paths[won.index(True)]).encode()}


def training(machine, name: str) -> Warehouse:
    """The run on a machine that trains iteration 0."""
    warehouse = machine(name)
    runs.begin(warehouse, "train", iteration=0)
    return warehouse


def test_a_policy_is_that_of_one_trainer_and_whole(machine) -> None:
    first, second = training(machine, "a"), training(machine, "b")
    folders = weights(first, 1, "of the first"), weights(second, 1, "of the second")
    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(lambda pair: pair[0].commit_policy(0, pair[1]),
                            zip((first, second), folders, strict=True)))
    assert sorted(won) == [False, True]
    text = ("of the first", "of the second")[won.index(True)]
    first.stage("train", iteration=0).complete({})
    for warehouse in (first, second, machine("c")):
        warehouse.log.refresh()
        warehouse.verify_policy(1)
        assert (warehouse.policy_dir(1) / "adapter_model.safetensors").read_text() == text
    assert sum(key.startswith("policies/1/") for key in keys(f"{STORE}/{first.root.name}")) == 4


def test_a_policy_whose_upload_was_killed_is_none_and_leaves_another_whole(machine, monkeypatch) -> None:
    warehouse, other = training(machine, "a"), training(machine, "b")
    puts = iter(("of the one that wins", "of the one that is killed"))

    def meanwhile(point: str, _path: Path) -> None:
        if point == "before put" and next(puts) == "of the one that wins":
            with pytest.raises(KeyboardInterrupt):
                other.commit_policy(0, weights(other, 1, "never a policy"))
            assert machine("c").state.versions == [0]
        elif point == "before put":
            raise KeyboardInterrupt
    with monkeypatch.context() as patched:
        patched.setattr("warehouse.objects.working_copy.reached", meanwhile)
        assert warehouse.commit_policy(0, weights(warehouse, 1, "there"))
    warehouse.stage("train", iteration=0).complete({})
    machine("d").verify_policy(1)
    assert sum(key.startswith("policies/1/") for key in keys(f"{STORE}/{warehouse.root.name}")) == 4


def trained(machine, name: str, version: int) -> Warehouse:
    """The run on a machine that writes a policy."""
    warehouse = machine(name)
    runs.begin(warehouse, "train", iteration=version - 1)
    warehouse.commit_policy(version - 1, weights(warehouse, version, f"of policy {version}"))
    warehouse.stage("train", iteration=version - 1).complete({})
    return warehouse


def test_only_what_trains_or_checks_brings_the_optimizer_of_a_policy(machine) -> None:
    """It is two thirds of a policy whose weights were all trained."""
    trained(machine, "a", 1)
    other = machine("b")
    sample(other, policy_version=1, iteration=1, serve="adapter")
    model_of_policy(other, 1)
    check_run(other, quick=True)
    third = trained(machine, "c", 2)
    roll_back(third, 1)
    for warehouse in (other, third):
        assert sorted(path.name for path in warehouse.policy_dir(1).iterdir()) == [
            "adapter_config.json", "adapter_model.safetensors", "policy.json"]
    assert check_run(other).problems == []
    assert (other.policy_dir(1) / "optimizer.pt").read_text() == "moments of policy 1"


def test_weights_that_were_dropped_leave_the_store_and_every_machine(machine, address: str) -> None:
    trained(machine, "a", 1)
    reader, other = machine("b"), machine("c")
    reader.verify_policy(1)
    other.verify_policy(1)
    prune_policies(trained(machine, "a", 2), 1)
    begun = weights(reader, 3, "not in the store yet")
    assert [key for key in keys(address) if key.startswith("policies/1/") and "files-" in key] == []
    assert sorted(key.rpartition("/")[2] for key in keys(address) if key.startswith("policies/2/")) == [
        "adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "policy.json"]
    assert len(list(reader.policy_dir(1).iterdir())) == 4
    reader = machine("b")
    reader.verify_policy(2)
    assert [path.name for path in reader.policy_dir(1).iterdir()] == ["policy.json"]
    assert len(list(machine("b").policy_dir(2).iterdir())) == len(list(begun.iterdir())) == 4
    assert check_run(machine("c")).problems == []


def test_a_file_that_was_changed_in_the_working_copy_is_brought_again(machine) -> None:
    warehouse = machine("a")
    sample(warehouse)
    part = warehouse.parts("completions", **KEYS)[0]
    content, stat = part.read_bytes(), part.stat()
    part.chmod(0o644)
    part.write_bytes(content[:100] + b"x" + content[101:])
    os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))     # as where a disk changes a bit
    warehouse.read("completions", **KEYS)
    assert part.read_bytes() == content


@pytest.mark.slow("a rollout of its own")
def test_an_object_that_vanished_is_an_error_and_no_row_less(machine) -> None:
    sample(machine("a"))
    warehouse = machine("b")
    part = warehouse.parts("completions", **KEYS)[0]
    Bucket(f"{STORE}/{warehouse.root.name}").delete([str(part.relative_to(warehouse.root))])
    with pytest.raises(StageError, match=r"part-00000.parquet is missing"):
        warehouse.read("completions", **KEYS)


def test_the_copy_of_a_run_that_is_gone_is_kept(machine, address: str, tmp_path: Path) -> None:
    warehouse = machine("a")
    tasks = warehouse.read("tasks").num_rows
    Bucket(address).delete(keys(address))
    with pytest.raises(StageError, match=r"no longer holds the run that .* is a copy of"):
        machine("a")
    Bucket(address).put("warehouse.json", b'{"run_id": "another", "schema_version": 2, "model": "m"}')
    with pytest.raises(StageError, match=r"no longer holds the run that .* is a copy of"):
        machine("a")
    (warehouse.root / "object-store.json").unlink()
    TWINS.clear()
    assert open_warehouse(warehouse.root).read("tasks").num_rows == tasks


def test_a_damaged_marker_and_a_cache_that_cannot_be_made_name_the_way_out(
        machine, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    marker = machine("a").root / "object-store.json"
    marker.write_text("{")
    with pytest.raises(StageError, match=r"Remove it, and name the run by its address"):
        open_warehouse(marker.parent)
    marker.unlink()
    assert open_warehouse(address).root == marker.parent and marker.exists()
    monkeypatch.setenv("ROLLHOUSE_CACHE", "/proc/copies")
    with pytest.raises(StageError, match=r"Cannot make the working copy .* in ROLLHOUSE_CACHE"):
        open_warehouse(address)


def test_a_long_log_is_opened_in_few_requests(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries lie packed by 8 and by 64; what came since the last pack is brought one by one."""
    first, asked = machine("a"), list[str]()
    for _ in range(80):
        first.append(lambda _state: WeightsDropped([]))
    ask = Bucket._ask
    monkeypatch.setattr(Bucket, "_ask", lambda self, work: asked.append("") or ask(self, work))
    second = machine("b")
    assert second.state.head == 80 and len(asked) <= 12
    for _ in range(3):
        first.append(lambda _state: WeightsDropped([]))
    asked.clear()
    assert machine("b").state.head == 83 and len(asked) <= 8
    Bucket(f"{STORE}/{first.root.name}").delete([f"{PACKS}/00000000-00000064.json"])     # as if never put
    assert machine("c").state.entries == first.state.entries


def test_settings_that_another_put_first_count(machine) -> None:
    first, second = machine("a"), machine("b")
    first.stage("rollout", **KEYS).settle({"temperature": 1.0})
    with pytest.raises(SettingChanged) as refused:
        second.stage("rollout", **KEYS).settle({"temperature": 0.5})
    assert (refused.value.name, refused.value.before, refused.value.now) == ("temperature", 1.0, 0.5)


@pytest.mark.slow("a rollout of its own")
def test_a_late_listing_drops_nothing_that_stands(machine, monkeypatch) -> None:
    warehouse = machine("a")
    sample(warehouse)
    part = warehouse.parts("completions", **KEYS)[0]
    late = {key: found for key, found in WorkingCopy(warehouse.root, f"{STORE}/{warehouse.root.name}")
            .listing().items() if not key.startswith("completions")}
    monkeypatch.setattr(WorkingCopy, "listing", lambda _copy: late)
    assert part.exists() and open_warehouse(warehouse.root) and part.exists()
    assert warehouse.stage("rollout", **KEYS).is_complete()


@pytest.mark.slow("four commands")
def test_what_to_run_next_is_named_by_the_address(machine, address: str) -> None:
    machine("a")
    assert f"Next: rollout {address}\n" in CliRunner().invoke(cli, ["summary", address]).output
    sample(machine("a"))
    moved = CliRunner().invoke(cli, ["discard", address, "--iteration", "0", "--purpose", "train"]).output
    assert moved == "discarded: rollout of iteration 0, purpose train\n"
    assert f"Run `rollout {address} --iteration 0` and then" in CliRunner().invoke(train, [address]).output


def test_a_local_run_imports_no_obstore(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    code = (f"import sys; from warehouse.store.run_folder import open_warehouse; open_warehouse("
            f"{str(warehouse.root)!r}).read('tasks'); sys.exit('obstore' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert TWINS == {}


def test_try_reads_the_limits_in_the_store(machine, tmp_path: Path, address: str) -> None:
    Bucket(address).put("config.toml", b"[score]\ncpu-seconds = 0.2\n")
    (tmp_path / "program.py").write_text("def transform(grid):\n    while True:\n        pass\n")
    said = CliRunner().invoke(score, ["try", address, str(tmp_path / "program.py"), "--task", "t0"])
    assert re.search(r"2\d\d\.\d ms of CPU", said.output), said.output
