"""A training in an object store goes on where it was killed, on any machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import equal

import train.steps.steps
import warehouse.objects.working_copy as working_copy
from tests.building.object_server import keys
from tests.building.runs import copy_run
from tests.building.sampled import SAVING, run_train, sample_rows, tiny_run
from tests.building.stored import on_machine
from train.inputs.asked import model_of_policy
from warehouse.objects.bucket import Bucket
from warehouse.objects.mirror import mirror_run
from warehouse.store.commit import TWINS
from warehouse.store.run_folder import Warehouse, open_warehouse


class Killed(BaseException):
    """Stands for SIGKILL: no `except Exception` sees it."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A scored run on a disk; beside it lies `trained`, the same without kills."""
    scored = tiny_run(tmp_path_factory.mktemp("alone") / "run")
    sample_rows(scored, 0)
    assert run_train(copy_run(scored, scored.root.parent / "trained")).exit_code == 0
    return scored


@pytest.fixture
def machine(alone: Warehouse, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opens the run as a machine of that name."""
    monkeypatch.chdir(alone.root)       # where every machine finds the base model, which lies in that run
    mirror_run(str(alone.root), address)
    yield partial(on_machine, address=address, folder=tmp_path, monkeypatch=monkeypatch)
    TWINS.clear()


def train_counting(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train to the end; how many steps it took."""
    taken = []
    take_step = train.steps.steps.take_step
    with monkeypatch.context() as patched:
        patched.setattr(train.steps.steps, "take_step",
                        lambda *arguments: (taken.append(1), take_step(*arguments))[1])
        ended = run_train(warehouse, "--iteration", "0", *SAVING)
    assert ended.exit_code == 0, ended.output
    return len(taken)


def killed_at(place: str, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until the checkpoint or policy of that name is about to count."""
    def die(point: str, path: Path) -> None:
        if point == "before put" and path.match(place):
            raise Killed
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(working_copy, "reached", die)
        run_train(warehouse, *SAVING)


@pytest.mark.parametrize(("place", "kept", "left"), [
    ("policies/1/generation=*", "checkpoint-2", 1),
    pytest.param("checkpoint-2", "checkpoint-1", 2, marks=pytest.mark.slow("again, at another instant"))])
def test_a_killed_training_goes_on_on_another_machine_to_the_same_policy(
        place: str, kept: str, left: int, machine, alone: Warehouse, address: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine("a")
    killed_at(place, first, monkeypatch)
    stored = {key.partition("/generation=")[2].partition("/")[2] for key in keys(address)
              if key.startswith("train/")}
    assert {"checkpoint-0/checkpoint.json", f"{kept}/checkpoint.json"} <= stored
    assert sum(key.endswith("/checkpoint.json") for key in stored) == 2
    assert train_counting(machine("b"), monkeypatch) == left
    weights = [load_file(run.policy_dir(1) / "adapter_model.safetensors")
               for run in (open_warehouse(alone.root.parent / "trained"), machine("b"))]
    assert all(equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not [key for key in keys(address) if "checkpoint-" in key]
    assert machine("a").state.versions == [0, 1] and not list(first.root.rglob("checkpoint-*/*"))


@pytest.mark.parametrize(("where", "left"), [("copy", 1), ("object", 3)])
def test_a_damaged_copy_is_downloaded_again_and_a_damaged_object_skips_its_checkpoint(
        where: str, left: int, machine, alone: Warehouse, address: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine("a")
    killed_at("policies/1/generation=*", first, monkeypatch)
    weights, = first.root.rglob("checkpoint-2/weights/__0_0.distcp")
    weights.write_bytes(weights.read_bytes()[:-1000])
    if where == "object":
        key, = (key for key in keys(address) if key.endswith("__0_0.distcp"))
        Bucket(address).put(key, weights)
    assert train_counting(machine("a"), monkeypatch) == left
    trained = open_warehouse(alone.root.parent / "trained")
    assert machine("b").policy(1)["sha256"] == trained.policy(1)["sha256"]
    assert not [key for key in keys(address) if "checkpoint-" in key]


def test_the_next_training_brings_the_optimizer_and_resumes_on_another_machine(
        machine, alone: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has brought it: the machine that samples in between does not."""
    one = copy_run(open_warehouse(alone.root.parent / "trained"), alone.root.parent / "on one disk")
    assert run_train(machine("a")).exit_code == 0
    sampler = machine("b")
    model_of_policy(sampler, 1)
    for run in (one, sampler):
        sample_rows(run, 1)
    assert not list(sampler.root.rglob("optimizer.pt"))
    killed_at("checkpoint-2", machine("c"), monkeypatch)
    ended = [run_train(run, *SAVING) for run in (one, machine("d"))]
    assert [each.exit_code for each in ended] == [0, 0] and "fresh moments" not in ended[1].output
    weights = [load_file(run.policy_dir(2) / "adapter_model.safetensors") for run in (one, machine("d"))]
    assert all(equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow("two trainings")
def test_what_another_training_put_first_counts_and_both_are_whole(
        machine, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine a stands still while b overtakes it; when it goes on it loses, and nothing is mixed."""
    slow = machine("a")

    def overtaken(point: str, path: Path) -> None:
        if point == "before put" and path.match("checkpoint-1"):
            monkeypatch.setattr(working_copy, "reached", lambda *_: None)
            killed_at("checkpoint-2", machine("b"), monkeypatch)
            monkeypatch.setenv("ROLLHOUSE_CACHE", str(slow.root.parents[2]))
    monkeypatch.setattr(working_copy, "reached", overtaken)
    assert train_counting(slow, monkeypatch) == 3 + 2
    assert not [key for key in keys(address) if "checkpoint-" in key]
    machine("c").verify_policy(1)
