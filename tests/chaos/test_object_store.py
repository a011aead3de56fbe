"""A run in an object store under kills, and one real iteration on two machines that share only the store."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.engine import needs_same_rows
from tests.building.object_server import STORE, keys, object_server
from tests.building.runs import STARTER, arc_file
from tests.chaos.kills import ROOT
from tests.chaos.loop import CONFIG, contents, leftovers, problems
from tests.loop.test_engine import CONFIG as REAL_CONFIG
from warehouse.init import init_run
from warehouse.store.commit import TWINS
from warehouse.store.run_folder import Warehouse, open_warehouse

ADDRESS = f"{STORE}/{uuid.uuid4().hex[:12]}-{{}}"
WORKERS, KILLS = 8, 16
Command = subprocess.Popen[str]


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with object_server():
        yield
    TWINS.clear()


def start(machine: Path, *words: str, real: bool = False, option: tuple[str, ...] = ("--list",)) -> Command:
    """A command as a machine runs it: with a working copy of its own."""
    engine = ["--real-engine"] if real else []
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.commands", *engine, *option, *words], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env=os.environ | {"ROLLHOUSE_CACHE": str(machine)})


def together(*commands: Command) -> None:
    """Wait for commands that have to end well."""
    printed = [command.communicate()[0] for command in commands]
    assert [command.returncode for command in commands] == [0] * len(commands), printed


def opened(address: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(machine))
    return open_warehouse(address)


@pytest.mark.slow("some forty starts of a rollout, most of them killed")
def test_eight_workers_that_are_killed_at_random_lose_and_double_no_row(
        server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, draw = ADDRESS.format("kills"), random.Random(5)
    (tmp_path / "config.toml").write_text(CONFIG)
    tasks = str(arc_file(tmp_path, [f"t{number}" for number in range(24)]))
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "first"))
    for run in (tmp_path / "alone", Path(address)):
        init_run(run, str(STARTER), (tasks,), config=tmp_path / "config.toml")
    together(start(tmp_path, "rollout", str(tmp_path / "alone"), "--iteration", "0"))

    def worker(number: int) -> Command:     # of each share there are two
        return start(tmp_path / f"machine-{number}", "rollout", address, "--iteration", "0",
                     "--shard", f"{number % (WORKERS // 2)}/{WORKERS // 2}")
    workers = {number: worker(number) for number in range(WORKERS)}
    killed = 0
    while killed < KILLS and (alive := [number for number in workers if workers[number].poll() is None]):
        number = draw.choice(alive)
        os.killpg(workers[number].pid, signal.SIGKILL)
        workers[number].communicate()
        killed += 1
        workers[number] = worker(number)
        time.sleep(draw.uniform(0.1, 1))
    together(*workers.values())
    together(start(tmp_path / "last", "rollout", address, "--iteration", "0"))
    warehouse = opened(address, tmp_path / "reader", monkeypatch)
    assert killed >= WORKERS and warehouse.stage("rollout", iteration=0, purpose="train").is_complete()
    assert contents(warehouse) == contents(open_warehouse(tmp_path / "alone"))
    assert leftovers(warehouse) == problems(warehouse) == []
    assert sum(key.endswith(".parquet") and key.startswith("completions") for key in keys(address)) == 12


@pytest.mark.engine
@needs_same_rows
@pytest.mark.slow("the real engine three times, and a training")
def test_a_real_iteration_on_two_machines_is_that_of_one(
        server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, first, second = ADDRESS.format("real"), tmp_path / "first", tmp_path / "second"
    (tmp_path / "config.toml").write_text(REAL_CONFIG)
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(first))
    for run in (tmp_path / "alone", Path(address)):
        init_run(run, str(STARTER), ("synthetic:12:3",), config=tmp_path / "config.toml")
    for name in ("rollout", "score", "train"):
        together(start(tmp_path, name, str(tmp_path / "alone"), "--iteration", "0", real=True))

    def halves(name: str) -> None:
        together(*(start(machine, name, address, "--iteration", "0", "--shard", f"{number}/2", real=True)
                   for number, machine in enumerate((first, second))))
    halves("rollout")
    together(start(second, "rollout", address, "--iteration", "0", real=True))
    halves("score")
    together(start(second, "score", address, "--iteration", "0"))
    together(start(second, "train", address, "--iteration", "0"))
    together(start(first, "rollout", address, "--iteration", "1", "--num-tasks", "2", real=True))
    warehouse = opened(address, tmp_path / "reader", monkeypatch)
    warehouse.verify_policy(1)
    assert warehouse.state.iterations("rollout") == [0, 1] and problems(warehouse) == []
    there, alone = contents(warehouse), contents(open_warehouse(tmp_path / "alone"))
    assert there["samples 0"] == alone["samples 0"]
    for row, other in zip(there["completions 0"], alone["completions 0"], strict=True):
        # A logprob may differ in its last digit: two workers' batches are not those of one.
        assert row.pop("behaviour_logprobs") == pytest.approx(other.pop("behaviour_logprobs"), abs=1e-4)
        assert row == other
    assert ([(row["task_id"], row["sample_index"], row["optimizer_step"]) for row in there["train 0"]]
            == [(row["task_id"], row["sample_index"], row["optimizer_step"]) for row in alone["train 0"]])


@pytest.mark.engine
@pytest.mark.slow("the real engine, warm, and a training")
def test_a_loop_trains_a_run_in_a_store_and_another_machine_goes_on(
        server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ADDRESS.format("loop")
    (tmp_path / "config.toml").write_text(REAL_CONFIG)
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "first"))
    init_run(Path(address), str(STARTER), ("synthetic:12:3",), config=tmp_path / "config.toml")
    for iterations, machine in enumerate(("first", "second"), start=1):
        loop = subprocess.run(
            [Path(sys.executable).with_name("warehouse"), "loop", address, str(iterations)], cwd=ROOT,
            text=True, capture_output=True, timeout=400,
            env=os.environ | {"ROLLHOUSE_CACHE": str(tmp_path / machine)})
        assert (loop.returncode, loop.stdout.count("\n")) == (0, 1), loop.stderr
    warehouse = opened(address, tmp_path / "reader", monkeypatch)
    assert warehouse.state.iterations("train") == [0, 1] and problems(warehouse) == []


@pytest.mark.slow("two stages, once for every instant of their commits")
def test_a_kill_at_every_instant_of_a_commit_leaves_the_rows_of_an_undisturbed_run(
        server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ADDRESS.format("instants")
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path / "machine-0"))
    for run in (tmp_path / "alone", Path(address)):
        init_run(run, str(STARTER), (str(arc_file(tmp_path, ["t0", "t1", "t2"])),),
                 config=tmp_path / "config.toml")
    killed = 0
    for name in ("rollout", "score"):
        together(start(tmp_path, name, str(tmp_path / "alone"), "--iteration", "0"))
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:      # on two machines in turn, which know of each other what is stored
            process = start(tmp_path / f"machine-{killed % 2}", name, address, "--iteration", "0",
                            option=("--die-once", str(tmp_path / f"{name}-passed")))
            printed, code = process.communicate()[0], process.returncode
            killed += code == -signal.SIGKILL
        assert code == 0, printed
    assert killed > 30
    warehouse = opened(address, tmp_path / "reader", monkeypatch)
    assert contents(warehouse) == contents(open_warehouse(tmp_path / "alone"))
    assert leftovers(warehouse) == problems(warehouse) == []
