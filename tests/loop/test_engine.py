"""The real loop with the real engine: two small iterations through the installed commands."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rollout.cli import rollout
from score.cli import score
from tests.building.engine import OFF_BY, ON_GPU, needs_same_rows
from tests.building.vllm_server import KEY, READY
from train.cli import train
from warehouse.store.run_folder import Warehouse, open_warehouse

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
INIT = ("warehouse", "init", "--model", "examples/starter/model", "--tasks", "synthetic:12:3")
CONFIG = """
[rollout]
num-tasks = 6
group-size = 8
prompt-format = "compact"
max-tokens = 56
max-prompt-tokens = 300
dtype = "float32"
gpu-memory-utilization = 0.2
part-size = 16
[score]
reward = "arc-exact-shaped"
[train]
learning-rate = 2e-3
updates-per-shard = 2
lora-rank = 8
dtype = "float32"
threads = 1
"""


def command(*words: object, code: int = 0, **variables: str) -> str:
    """Output of a command of this environment (its errors if it fails); its exit code must be `code`."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | variables
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment,
                          cwd=ROOT)
    assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, str]:
    """A run after two iterations, and what the loop printed."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "config.toml").write_text(CONFIG)
    command(*INIT, folder / "run", "--config", folder / "config.toml")
    printed = command("warehouse", "loop", folder / "run", 2)
    return open_warehouse(folder / "run"), printed


@pytest.mark.engine
def test_two_iterations_write_rows_rewards_and_policies(looped: tuple[Warehouse, str]) -> None:
    warehouse, printed = looped
    assert warehouse.state.versions == [0, 1, 2]
    assert (warehouse.policy_dir(2) / "adapter_model.safetensors").exists()
    for iteration in (0, 1):
        completions = warehouse.read("completions", iteration=iteration, purpose="train").to_pylist()
        assert len(completions) == 48
        assert {row["policy_version"] for row in completions} == {iteration}
        scorer, = warehouse.state.scorers(iteration, "train")
        rewards = warehouse.read("samples", ["reward"], iteration=iteration, purpose="train",
                                 scorer=scorer)["reward"].to_pylist()
        assert len(rewards) == 48 and None not in rewards and len(set(rewards)) > 1
        assert f"iteration {iteration}  pass@1" in printed
    command("warehouse", "check", warehouse.root)


@pytest.mark.engine
def test_at_staleness_0_the_trainer_agrees_with_the_engine(looped: tuple[Warehouse, str]) -> None:
    """The second iteration was sampled through the adapter that the first one trained."""
    warehouse, _ = looped
    for iteration in (0, 1):
        rows = warehouse.read("train_samples", iteration=iteration).to_pylist()
        assert {row["staleness"] for row in rows} == {0}
        assert max(row["log_ratio_abs_max"] for row in rows) < OFF_BY
        assert max(row["log_ratio_abs_mean"] for row in rows) < OFF_BY / 20


@pytest.mark.slow("starts the engine once more")
@pytest.mark.engine
@needs_same_rows
def test_the_same_seeds_give_the_same_rows(looped: tuple[Warehouse, str], tmp_path: Path) -> None:
    first, _ = looped
    command(*INIT, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(CONFIG)
    command("rollout", tmp_path / "run", "--iteration", 0)
    columns = ["task_id", "sample_index", "completion_ids", "behaviour_logprobs"]
    tables = [run.read("completions", columns, iteration=0, purpose="train").to_pylist()
              for run in (first, open_warehouse(tmp_path / "run"))]
    assert tables[0] == tables[1]


@pytest.mark.slow("loads everything for every command")
@pytest.mark.engine
@needs_same_rows
def test_the_loop_without_what_stays_loaded_samples_the_same_rows(looped: tuple[Warehouse, str],
                                                                  tmp_path: Path) -> None:
    cold = loop(tmp_path, ROLLHOUSE_WARM="off")
    for iteration in (0, 1):
        same_rows(looped[0], cold, iteration)


@pytest.mark.slow("starts vLLM's server")
@pytest.mark.engine
def test_rollouts_from_a_server_have_the_same_rows_and_the_policy_that_was_trained(
        looped: tuple[Warehouse, str], tmp_path: Path) -> None:
    command(*INIT, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(CONFIG)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = [sys.executable, "-m", "tests.building.vllm_server", tmp_path / "run", str(port)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        assert any(READY in line for line in server.stderr or ())
        variables = {"ROLLOUT_ENDPOINT": f"http://127.0.0.1:{port}", "VLLM_API_KEY": KEY}
        served = loop(tmp_path, **variables)
        command("warehouse", "loop", served.root, 4, "--ahead", **variables)
        server.send_signal(signal.SIGINT)
    if not ON_GPU:
        same_rows(looped[0], served, 0)
    rows = served.read("train_samples", iteration=1).to_pylist()
    assert max(row["log_ratio_abs_max"] for row in rows) < OFF_BY
    ahead = [served.read("completions", ["policy_version"], iteration=number, purpose="train")
             for number in (2, 3)]
    assert [set(rows["policy_version"].to_pylist()) for rows in ahead] == [{2}, {2}]
    assert served.state.versions == [0, 1, 2, 3, 4]
    engines = served.read("completions", ["engine"], iteration=1, purpose="train")["engine"].to_pylist()
    assert {engine.partition("server")[2] for engine in engines} == {" (merged)"}


def loop(folder: Path, **variables: str) -> Warehouse:
    """A run after two iterations in another way."""
    if not (folder / "run").exists():
        command(*INIT, folder / "run")
        (folder / "run" / "config.toml").write_text(CONFIG)
    command("warehouse", "loop", folder / "run", 2, **variables)
    return open_warehouse(folder / "run")


def same_rows(first: Warehouse, second: Warehouse, iteration: int) -> None:
    """Assert that two runs sampled the same completions."""
    columns = ["task_id", "sample_index", "completion_ids", "completion", "behaviour_logprobs"]
    for one, other in zip(*(run.read("completions", columns, iteration=iteration, purpose="train").to_pylist()
                            for run in (first, second)), strict=True):
        assert one.pop("behaviour_logprobs") == pytest.approx(other.pop("behaviour_logprobs"), abs=1e-5)
        assert one == other


@pytest.mark.slow("loads everything once more, to find nothing to do")
@pytest.mark.engine
def test_a_complete_loop_run_again_changes_nothing_even_after_it_was_moved(
        looped: tuple[Warehouse, str], tmp_path: Path) -> None:
    warehouse, _ = looped
    moved = warehouse.root.rename(tmp_path / "moved")
    before = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    command("warehouse", "loop", moved, 2)
    after = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    assert {path.name for path in after if after[path] != before.get(path)} <= {"warehouse.sql", "loop.log"}
    answer = command("warehouse", "sql", moved, "select count(*) as n from samples", "--format", "json")
    moved.rename(warehouse.root)
    assert json.loads(answer) == {"n": 96}


@pytest.mark.engine
def test_mistakes_of_order_are_one_sentence(looped: tuple[Warehouse, str]) -> None:
    warehouse, _ = looped
    for stage, words, sentence in [
        (score, ("--iteration", "2"), "Iteration 2 has no complete rollout"),
        (train, ("--iteration", "2"), "Iteration 2 has no complete"),
        (rollout, ("--iteration", "4"), "policy 4, which does not exist yet"),
        (rollout, ("--iteration", "1", "--group-size", "4"), "group-size = 8, now it is 4"),
    ]:
        assert_sentence(stage, [str(warehouse.root), *words], sentence)
    assert_sentence(rollout, [str(warehouse.root / "policies")], "is not a run folder")


def assert_sentence(stage: click.Command, words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(stage, words)
    assert done.exit_code == 1 and sentence in done.stderr, done.output
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
