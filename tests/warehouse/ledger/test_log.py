"""Entries are committed one after the other, whoever writes them, and name the one before."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.building import runs
from tests.building.runs import small_run, without_waiting
from warehouse.ledger.entries import Begun, Discarded, RolledBack, WeightsDropped
from warehouse.ledger.log import Log
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.check import check_run
from warehouse.maintain.discard import discard
from warehouse.maintain.prune import prune_ended
from warehouse.maintain.rollback import roll_back
from warehouse.store.errors import Damaged
from warehouse.store.run_folder import Warehouse, open_warehouse

KEYS = {"iteration": 0, "purpose": "train"}


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    with without_waiting():
        return small_run(tmp_path)


def test_of_many_writers_each_gets_a_number_of_its_own(run: Warehouse) -> None:
    logs = [Log(run.root) for _ in range(8)]

    def begin(number: int) -> int | None:
        return logs[number].append(lambda _state: Begun("rollout", number, "train", None, {}))
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(begin, range(8)))
    assert sorted(number or 0 for number in numbers) == list(range(1, 9))
    assert [life.iteration for life in Log(run.root).state().of_stage("rollout")] == list(range(8))


def test_threads_share_one_reader(run: Warehouse) -> None:
    writer = Log(run.root)
    for number in range(300):
        writer.append(lambda _state, number=number: Begun("rollout", number, "train", None, {}))
    reader = Log(run.root)
    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(lambda _: reader.state(), range(64)))
    assert {state.head for state in states} == {300}


def test_who_comes_second_joins_and_who_was_ended_writes_nothing(run: Warehouse) -> None:
    first, second = open_warehouse(run.root), open_warehouse(run.root)
    first.stage("rollout", **KEYS).settle({"seed": 1})
    second.stage("rollout", **KEYS).settle({"seed": 1})
    assert first.joined == second.joined and first.state.head == 1
    discard(open_warehouse(run.root), 0, "train")
    rows = runs.table("prompts", [runs.prompt_row("t0", 2)])
    for warehouse in (first, second):
        with pytest.raises(Refusal) as refused:
            warehouse.write_part("prompts", 0, rows, **KEYS)
        assert refused.value.code == "ended" and refused.value.fields["entry"] == 2
    with pytest.raises(Refusal) as refused:
        first.stage("rollout", **KEYS).settle({"seed": 1})
    assert refused.value.code == "ended"
    open_warehouse(run.root).stage("rollout", **KEYS).settle({"seed": 2})      # another life, another folder
    assert open_warehouse(run.root).folder("prompts", **KEYS).name == "generation=3"


def test_a_training_of_rows_that_are_gone_writes_no_policy(run: Warehouse) -> None:
    runs.finish(run, "rollout", **KEYS)
    runs.finish(run, "score", **KEYS, scorer="exact-1")
    training = runs.begin(run, "train", iteration=0)
    discard(open_warehouse(run.root), 0, "train")
    with pytest.raises(Refusal) as refused:
        training.complete({})
    assert refused.value.code == "ended"
    assert open_warehouse(run.root).state.versions == [0]


def test_a_rollback_while_a_training_loads_is_seen_when_it_begins(run: Warehouse) -> None:
    for version in (1, 2):
        folder = run.scratch("policy")
        (folder / "policy.json").write_text(json.dumps(
            {"policy_version": version, "sha256": "0" * 64, "kind": "base"}))
        runs.add_policy(run, version, folder)
    runs.finish(run, "rollout", iteration=2, purpose="train")
    seen = run.state.policies[2].trained
    roll_back(open_warehouse(run.root), 1)
    with pytest.raises(Refusal) as refused:
        run.stage("train", iteration=2).settle({}, reads=[seen or 0])
    assert refused.value.code == "trained_meanwhile" and refused.value.fields["policy"] == 3
    assert run.state.left_out == {2: 1} and run.state.policies[3].rolled_back_to == 1


def test_a_missing_entry_is_named_and_nothing_is_written_in_its_place(run: Warehouse) -> None:
    runs.begin(run, "rollout", **KEYS)
    reader = Log(run.root)
    assert reader.state().head == 1
    for number in (1, 2):
        runs.begin(run, "rollout", iteration=number, purpose="train")
    (run.root / "_log/00000002.json").unlink()
    with pytest.raises(Damaged, match="it is missing"):
        Log(run.root).state()
    with pytest.raises(Damaged):
        reader.append(lambda _state: Begun("rollout", 5, "train", None, {}))
    assert not (run.root / "_log/00000002.json").exists()


def without_end(run: Warehouse, first: int) -> Warehouse:
    """The run as copied without the entries from `first` on."""
    for number in range(first, run.state.head + 1):
        run.log.path(number).unlink()
    return open_warehouse(run.root)


def test_a_lost_end_of_the_log_is_named_and_what_it_named_stays(run: Warehouse) -> None:
    for purpose in ("train", "eval"):
        runs.write_rows(run, "prompts", [[runs.prompt_row("t0", 2, purpose=purpose)]])
    folder = run.folder("prompts", iteration=0, purpose="eval")
    os.utime(folder, (0, 0))
    assert run.state.head == 2
    cut, part = without_end(run, 2), folder / "part-00000.parquet"
    [problem] = check_run(cut).problems
    assert problem == (f"{cut.log.path(2)} and entries up to 2 are missing, though prompts/iteration=0/"
                       "purpose=eval/generation=2 is there. Restore them from a copy of the run; if there is "
                       "none, move that folder out of the run.")
    for use in (lambda: prune_ended(cut, dry_run=False),
                lambda: runs.begin(cut, "rollout", {"temperature": 0.5}, iteration=0, purpose="eval"),
                lambda: runs.begin(cut, "rollout", {"temperature": 0.5}, iteration=0, purpose="other")):
        with pytest.raises(Damaged) as refused:
            use()
        assert str(refused.value) == problem and part.exists() and cut.state.head == 1
    shutil.rmtree(folder)
    runs.begin(cut, "rollout", {"temperature": 0.5}, iteration=0, purpose="eval")


def test_a_stage_that_another_begins_meanwhile_is_no_lost_end(run: Warehouse) -> None:
    reader = open_warehouse(run.root)
    assert reader.state.head == 0
    for purpose in ("train", "eval"):
        runs.write_rows(run, "prompts", [[runs.prompt_row("t0", 2, purpose=purpose)]])
        reader.log.check_whole("*")             # it has not read that entry yet
    assert runs.begin(reader, "rollout", iteration=0, purpose="other").life.begun == 3
    assert check_run(open_warehouse(run.root)).problems == []


def test_a_changed_entry_is_named(run: Warehouse) -> None:
    runs.begin(run, "rollout", **KEYS)
    runs.begin(run, "rollout", iteration=0, purpose="eval")
    path = run.root / "_log" / "00000001.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"train"', '"eval"'))
    with pytest.raises(Damaged) as refused:
        assert open_warehouse(run.root).state
    assert refused.value.path == path


@pytest.mark.parametrize("by_older_version", [False, True])
def test_a_run_without_its_log_is_not_taken_for_one_of_an_older_version(run: Warehouse,
                                                                        by_older_version: bool) -> None:
    runs.begin(run, "rollout", **KEYS)
    run.write_part("prompts", 0, runs.table("prompts", [runs.prompt_row("t0", 2)]), **KEYS)
    if by_older_version:
        runs.change_document(run.root / "warehouse.json", oldest_part=3)
    (run.root / "_log").rename(run.root / "elsewhere")
    for use in (lambda: open_warehouse(run.root).state, lambda: run.append(lambda _state: RolledBack(0))):
        with pytest.raises(Damaged) as refused:
            use()
        assert refused.value.path == run.root / "_log" and not refused.value.path.exists()


def test_what_is_not_allowed_is_not_appended(run: Warehouse) -> None:
    for what, code in ((RolledBack(7), "no_policy"), (RolledBack(0), "is_newest"),
                       (WeightsDropped([0]), "overtaken"), (WeightsDropped([7]), "overtaken")):
        with pytest.raises(Refusal) as refused:
            run.append(lambda _state, what=what: what)
        assert refused.value.code == code
    runs.begin(run, "rollout", **KEYS)
    run.append(lambda _state: Discarded([1]))
    with pytest.raises(Refusal):
        run.append(lambda _state: Discarded([1]))
    assert run.state.head == 2
