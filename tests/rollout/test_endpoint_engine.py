"""Rollouts from a real vLLM server on this machine: the rows are those of an engine in the process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.building.engine import ON_GPU, needs_same_rows
from tests.building.runs import copy_run
from tests.building.vllm_server import KEY, READY
from tests.rollout.test_merged import run_with_adapter
from warehouse.store.run_folder import Warehouse, open_warehouse

pytestmark = [pytest.mark.engine, pytest.mark.slow("starts vLLM's server, and engines to compare with")]
ROOT = Path(__file__).parents[2]
ROLLOUT = [sys.executable, "-c", "from rollout.cli import rollout; rollout()"]
Served = tuple[subprocess.Popen[str], str]
CONFIG = f"""
[rollout]
group-size = 8
prompt-format = "compact"
max-tokens = 56
max-prompt-tokens = 300
dtype = "{"bfloat16" if ON_GPU else "float32"}"     # vLLM's kernels for adapters take no float32 on a GPU
gpu-memory-utilization = 0.2
part-size = 8
serve = "adapter"
"""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    run = run_with_adapter(tmp_path_factory.mktemp("served"), [f"t{number}" for number in range(12)])
    (run.root / "config.toml").write_text(CONFIG)
    copy_run(run, run.root.with_name("unsampled"))
    return run


@pytest.fixture(scope="module")
def server(warehouse: Warehouse) -> Iterator[Served]:
    """A vLLM server for the run, and its address, once it answers."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.building.vllm_server", str(warehouse.root), str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = []
        for line in process.stderr:
            said.append(line)
            if READY in line:
                break
        else:
            pytest.fail("".join(said))
        yield process, f"http://127.0.0.1:{port}"
        process.kill()
    monkeypatch.undo()


def unsampled(run: Warehouse, folder: Path) -> Warehouse:
    """A copy of the run from before any test sampled."""
    return copy_run(open_warehouse(run.root.with_name("unsampled")), folder)


def roll_out(run: Warehouse, *options: str, url: str = "") -> None:
    words = [*ROLLOUT, str(run.root), *options, *(["--endpoint", url] if url else [])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sampled(run: Warehouse, iteration: int) -> list[dict]:
    columns = ["task_id", "sample_index", "seed", "completion", "completion_ids", "behaviour_logprobs",
               "finish_reason", "dtype", "device", "host"]
    return run.read("completions", columns, iteration=iteration, purpose="train").to_pylist()


def assert_same(rows: list[dict], others: list[dict]) -> None:
    """The same rows, but for the last digits of the logprobs, which depend on who else is in the batch."""
    for row, other in zip(rows, others, strict=True):
        assert row.pop("behaviour_logprobs") == pytest.approx(other.pop("behaviour_logprobs"), abs=1e-5)
        assert row == other


@needs_same_rows
@pytest.mark.parametrize(("iteration", "more"), [
    (0, ()), (1, ()), (2, ("--policy", "1"))])
def test_the_rows_are_those_of_an_engine_in_the_process(
        warehouse: Warehouse, server: Served, tmp_path: Path, iteration: int, more: tuple[str, ...]) -> None:
    alone = unsampled(warehouse, tmp_path / "alone")
    roll_out(alone, "--iteration", str(iteration), *more)
    roll_out(warehouse, "--iteration", str(iteration), *more, url=server[1])
    assert_same(sampled(warehouse, iteration), sampled(alone, iteration))


@needs_same_rows
def test_a_rollout_that_was_killed_in_the_middle_ends_with_the_same_rows(
        warehouse: Warehouse, server: Served, tmp_path: Path) -> None:
    killed = unsampled(warehouse, tmp_path / "killed")
    options = ["--iteration", "1", "--max-num-seqs", "2", "--endpoint", server[1]]
    process = subprocess.Popen([*ROLLOUT, str(killed.root), *options], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not killed.parts("completions", iteration=1, purpose="train") and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert sampled(killed, 1)
    roll_out(killed, *options)
    roll_out(warehouse, "--iteration", "1", url=server[1])
    assert_same(sampled(killed, 1), sampled(warehouse, 1))


def test_the_same_server_is_a_foreign_model_to_a_run_that_asks_by_messages(
        warehouse: Warehouse, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = copy_run(warehouse, tmp_path / "asking")
    monkeypatch.setenv("THE_KEY", KEY)
    if ON_GPU:      # rollouts of its own run wake it
        ask(server, "/wake_up", KEY, method="POST").close()
    with ask(server, "/v1/models", KEY) as answer:
        name = json.load(answer)["data"][0]["id"]
    roll_out(run, "--model", name, "--distil", "--num-tasks", "3",
             "--max-num-seqs", "4", "--api-key-variable", "THE_KEY", url=server[1])
    rows = run.read("completions", iteration=1, purpose="distil").to_pylist()
    assert len(rows) == 24 and {row["engine"] for row in rows} == {f"{name} (openai)"}
    assert all(row["behaviour_logprobs"] is None and row["completion_ids"] for row in rows)
    assert "```python" in "".join(row["completion"] for row in rows), "it read the prompts"


def test_nobody_else_has_the_server_do_anything(server: Served) -> None:
    for path, key in (("/collective_rpc", ""), ("/v1/models", ""), ("/server_info", "guessed")):
        with pytest.raises(HTTPError, match="401"):
            ask(server, path, key)
    with pytest.raises(HTTPError, match="404"):
        ask(server, "/pause", KEY, method="POST")


def ask(server: Served, path: str, key: str, method: str = "GET") -> Any:
    """The server's answer to a request with a key."""
    return urlopen(Request(server[1] + path, headers={"Authorization": f"Bearer {key}"}, method=method))


def test_nothing_of_a_server_outlives_its_command(server: Served) -> None:
    process, _ = server
    children = listed("--ppid", process.pid)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 300
    while alive := [pid for child in children for pid in listed("--sid", child)]:
        assert time.monotonic() < end, f"{alive} still run"
        time.sleep(0.5)


def listed(*selection: object) -> list[str]:
    """Ids of the processes that `ps` selects, without mere zombies."""
    command = ["ps", *map(str, selection), "-o", "pid=,stat="]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line.split()[0] for line in lines if "Z" not in line.split()[1]]
