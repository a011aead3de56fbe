"""Care commands on a run in an object store: their changes are one, also where a kill falls into them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.building.object_server import STORE, keys
from tests.building.runs import TURN
from tests.building.stored import on_machine, sample, stored_run, weights
from tests.chaos.loop import contents
from warehouse.maintain.check import check_run
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.prune import prune_policies
from warehouse.maintain.repair import plan_repair, put_aside
from warehouse.maintain.rollback import roll_back
from warehouse.maintain.tasks import add_tasks
from warehouse.objects.bucket import Bucket
from warehouse.store.commit import TWINS
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

KEYS = {"iteration": 0, "purpose": "train"}


class Killed(Exception):
    """What a kill is here."""


@pytest.fixture
def machine(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opens one sampled run, with a second policy, as a machine of that name."""
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "a"))
    stored_run(address, tmp_path, num_tasks=4)

    def opened(name: str) -> Warehouse:
        return on_machine(name, address, tmp_path, monkeypatch)
    warehouse = opened("a")
    sample(warehouse)
    opened.address = address        # type: ignore[attr-defined]
    yield opened
    TWINS.clear()


def objects(warehouse: Warehouse, prefix: str = "") -> set[str]:
    return {key for key in keys(f"{STORE}/{warehouse.root.name}") if key.startswith(prefix)}


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch, command: Callable[[], object]) -> bool:
    """Run the command and kill it before the change's step of that number; False if it has fewer."""
    passed = iter(range(1000))

    def die(point: str, _path: Path) -> None:
        if point in ("after intent", "before step") and next(passed) == step:
            raise Killed
    with monkeypatch.context() as patched:
        patched.setattr("warehouse.objects.changes.reached", die)
        try:
            command()
        except Killed:
            return True
    return False


def test_a_discard_is_seen_everywhere_and_takes_the_spills_with_it(machine) -> None:
    first, second = machine("a"), machine("b")
    second.read("completions", **KEYS)
    spill = second.part_path("completions", 7, **KEYS).with_name("part-00007.parquet.spill-0123456789ab")
    spill.write_text("rows of the settings before")
    parts = objects(first, "completions")
    discard(first, 0, "train")
    assert not objects(first, "completions") and not objects(first, "prompts") and not objects(first, ".sta")
    assert len(objects(first, "discarded")) > len(parts)
    second = machine("b")
    assert second.iterations("completions") == [] and not spill.exists()
    sample(second, max_tokens=9)
    assert check_run(machine("a")).problems == []


def killed_at_every_step(machine, monkeypatch: pytest.MonkeyPatch,
                         command: Callable[[Warehouse], object]) -> None:
    """Kill the command once it is written down, then whoever goes on before its first step, its second, .."""
    assert kill_at(0, monkeypatch, lambda: command(machine("a")))
    step, run = 0, machine.address
    while kill_at(step, monkeypatch, partial(machine, f"machine {step}")):
        assert "intent.json" in keys(run)
        step += 1
    assert step > 2 and not [key for key in keys(run) if key.startswith((".staging", "intent"))]


def test_a_compaction_that_is_killed_at_every_step_loses_no_row(machine, monkeypatch) -> None:
    before = contents(machine("a"))
    killed_at_every_step(machine, monkeypatch, compact_run)
    for name in ("a", "fresh"):
        assert contents(machine(name)) == before and check_run(machine(name)).problems == []
        assert len(machine(name).parts("completions", **KEYS)) == 1
    assert sum(key.endswith(".parquet") for key in objects(machine("a"), "completions")) == 1


@pytest.mark.slow("as the compaction's, with policies")
def test_a_rollback_that_is_killed_at_every_step_gives_the_former_weights(machine, monkeypatch) -> None:
    warehouse = machine("a")
    for version, text in ((1, "good"), (2, "bad")):
        warehouse.commit_policy(version, weights(warehouse, version, text))
    machine("b").verify_policy(2)
    killed_at_every_step(machine, monkeypatch, lambda run: roll_back(run, 1))
    for name in ("a", "b", "fresh"):
        warehouse = machine(name)
        warehouse.verify_policy(2)
        assert warehouse.policy(2)["rolled_back_to"] == 1
        assert (warehouse.policy_dir(2) / "adapter_model.safetensors").read_text() == "good"
    assert len(objects(warehouse, "policies/2.set-aside-1/")) == len(objects(warehouse, "policies/2/")) == 2


def test_pruned_policies_keep_their_document_everywhere(machine) -> None:
    warehouse = machine("a")
    for version in (1, 2):
        warehouse.commit_policy(version, weights(warehouse, version, "text"))
    machine("b").verify_policy(1)
    prune_policies(machine("c"), keep=1)
    assert objects(warehouse, "policies/1/") == {"policies/1/policy.json"}
    assert machine("a").is_pruned(1) and machine("b").is_pruned(1) and not machine("b").is_pruned(2)


@pytest.mark.slow("two rollouts")
def test_a_damaged_object_goes_aside_and_is_sampled_again(machine) -> None:
    before, part = contents(machine("a")), "completions/iteration=0/purpose=train/part-00001.parquet"
    bucket = Bucket(f"{STORE}/{machine('a').root.name}")
    bucket.put(part, b"not what the manifest says")
    assert any(part in problem for problem in check_run(machine("b")).problems)
    put_aside(machine("b"), plan_repair(machine("b")))
    assert part not in objects(machine("b")) and objects(machine("b"), "broken/")
    sample(machine("a"))
    assert contents(machine("c")) == before and check_run(machine("c")).problems == []


@pytest.mark.slow("a run of its own")
def test_added_tasks_are_those_of_every_machine(machine, tmp_path: Path) -> None:
    machine("b").read("tasks")
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"new": TURN}))
    add_tasks(machine("a"), (str(more),), ())
    assert "new" in machine("b").read("tasks")["task_id"].to_pylist()
    assert check_run(machine("c")).problems == []


def test_a_change_that_no_command_wrote_is_not_made(machine) -> None:
    warehouse = machine("a")
    bucket = Bucket(f"{STORE}/{warehouse.root.name}")
    steps = [["delete", "../other/run", ""]]
    bucket.put("intent.json", json.dumps({"command": "x", "steps": steps}).encode())
    with pytest.raises(StageError, match="names a change that no command of ours writes"):
        machine("b")
