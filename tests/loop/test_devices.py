"""The loop on several devices of a CPU, with the real engine: what one does, also after kills."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.building.engine import ON_GPU
from tests.chaos.loop import contents, leftovers, problems
from tests.loop.test_engine import CONFIG, INIT, ROOT, command
from warehouse.store.run_folder import Warehouse, open_warehouse

pytestmark = [pytest.mark.engine, pytest.mark.slow("several engines and trainers"),
              pytest.mark.skipif(ON_GPU, reason="on a GPU no two rollouts have the same rows")]


def new_run(folder: Path) -> Warehouse:
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG + "checkpoint-seconds = 0\n")
    command(*INIT, folder / "run", "--config", folder / "config.toml")
    return open_warehouse(folder / "run")


def kill(name: str, folder: Path, over: threading.Event) -> bool:
    """Kill -9 the process of this name that has this temporary folder; whether there was one."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = (entry / "comm").read_text().strip() == name and (
                f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if found and not over.is_set():
            os.kill(int(entry.name), signal.SIGKILL)
            return True
    return False


def loop(warehouse: Warehouse, *options: str,
         kills: tuple[tuple[str, str], ...] = ()) -> tuple[str, list[str]]:
    """Two iterations; what was printed, and who was killed, each once there was a file of a pattern."""
    folder, over, killed = warehouse.root.parent / "tmp", threading.Event(), list[str]()
    folder.mkdir()

    def work() -> None:
        for pattern, name in kills:
            while not over.is_set() and not any(warehouse.root.glob(pattern)):
                time.sleep(0.01)
            killed.extend([name] if kill(name, folder, over) else [])
    thread = threading.Thread(target=work)
    thread.start()
    printed = command("warehouse", "loop", warehouse.root, 2, *options, TMPDIR=str(folder))
    over.set()
    thread.join()
    assert not [left for left in folder.glob("rollhouse-*") if not left.name.startswith("rollhouse-sql-")]
    return printed, killed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows and policies of two devices, time-shared."""
    warehouse = new_run(tmp_path_factory.mktemp("two") / "two")
    loop(warehouse, "--devices", "2")
    assert {row["num_processes"] for row in trainings(warehouse)} == {2}
    return contents(warehouse)


def trainings(warehouse: Warehouse) -> list[dict[str, Any]]:
    manifests = [warehouse.stage("train", iteration=iteration).manifest() for iteration in (0, 1)]
    return [manifest["facts"] for manifest in manifests if manifest]


def assert_alike(found: dict[str, Any], expected: dict[str, Any], *, only_sampled: bool = False) -> None:
    """The same completions of iteration 0, but for the last digits of the logprobs: an engine's depend on who
    else is in the batch. Where these are the same as well, all else has to be the same to the bit.
    """
    ours, theirs = found["completions 0"], expected["completions 0"]
    for mine, other in zip(ours, theirs, strict=True):
        assert {**mine, "behaviour_logprobs": None} == {**other, "behaviour_logprobs": None}
        assert mine["behaviour_logprobs"] == pytest.approx(other["behaviour_logprobs"], abs=1e-5)
    if ours == theirs and not only_sampled:
        assert found == expected


def test_an_engine_and_a_trainer_that_are_killed_change_no_row(undisturbed: dict[str, Any],
                                                               tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "killed")
    printed, killed = loop(warehouse, "--devices", "2", kills=(
        ("completions/iteration=0/*/*/part-*", "rollout@1"), ("train/iteration=1/*/checkpoint-0", "train@1")))
    # The engine may have been killed between two shares: then nothing of it was lost.
    assert killed == ["rollout@1", "train@1"] and "device 1: `train` ended" in printed
    assert_alike(contents(warehouse), undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


def test_ahead_one_device_samples_while_the_other_trains(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "ahead")
    loop(warehouse, "--devices", "2", "--ahead")
    assert_alike(contents(warehouse), undisturbed, only_sampled=True)
    rows = warehouse.read("completions", ["policy_version"], iteration=1, purpose="train")
    assert {*rows["policy_version"].to_pylist()} == {0} and problems(warehouse) == []


def test_what_several_devices_began_one_goes_on_with(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "fewer")
    command("rollout", warehouse.root, "--iteration", 0, "--shard", "1/3", "--part-size", 8)
    loop(warehouse)
    assert_alike(contents(warehouse), undisturbed, only_sampled=True)


def test_trainers_that_share_the_weights_train_the_same(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    warehouse, config = new_run(tmp_path / "shared"), ROOT / "examples" / "many-gpus" / "by-layer.yaml"
    loop(warehouse, "--devices", "2", "--accelerate-config", str(config))
    assert {facts["num_processes"] for facts in trainings(warehouse)} == {2}
    expected, found = undisturbed["train 0"], contents(warehouse)["train 0"]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["old_logprobs"] == pytest.approx(theirs["old_logprobs"], abs=1e-5)
    assert warehouse.log.refresh().newest == 2 and problems(warehouse) == []
