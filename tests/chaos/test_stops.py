"""Stopping in order, for every stage: what is finished is kept, the exit code is 75, the reason is told."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from score.cli import score
from score.sandbox import executor as execution
from tests.building import runs, sampled, scripted, texts
from tests.building.runs import small_run
from tests.building.scripted import ScriptedEngine
from tests.chaos.loop import contents
from train.cli import train
from warehouse.inspect.history import history
from warehouse.ledger.entries import Worked
from warehouse.sql.database import connect, rows_of
from warehouse.stages import warm
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.run_folder import Warehouse


def sample(warehouse: Warehouse, engine: ScriptedEngine | None = None, **values: object) -> ScriptedEngine:
    engine = engine or ScriptedEngine()
    scripted.sample(warehouse, engine, **{"part_size": 100, **values})
    return engine


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Failing(ScriptedEngine):
    """Fails after seven completions, as an engine does whose processes got the signal too."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.before = before

    def sample(self, requests, sampling):
        for count, drawn in enumerate(super().sample(requests, sampling)):
            if count == 7:
                self.before()
                raise RuntimeError("worker 1 died\nand a long trace")
            yield drawn


@pytest.mark.parametrize("grace", [0.0, 1000.0])
def test_an_engine_that_fails_while_a_rollout_stops_is_told_and_nothing_is_lost(tmp_path: Path,
                                                                                grace: float) -> None:
    warehouse = small_run(tmp_path)
    sentence = (r"SIGTERM was received, with 7 of 20 completions kept\. "
                r"The engine failed meanwhile: RuntimeError: worker 1 died\. Run")
    with pytest.raises(StageStopped, match=sentence) as stopped:
        sample(warehouse, Failing(terminate), grace=grace)
    assert isinstance(stopped.value.__cause__, RuntimeError)
    assert len(sample(warehouse).served) == 13


def test_an_engine_that_fails_by_itself_keeps_its_error_and_what_it_finished(tmp_path: Path) -> None:
    warehouse, whole = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole)
    with pytest.raises(RuntimeError, match="worker 1 died"):
        sample(warehouse, Failing())
    assert len(sample(warehouse).served) == 13
    assert contents(warehouse) == contents(whole)


def test_an_engine_whose_start_a_signal_ends_is_a_stop_that_tells_it(tmp_path: Path) -> None:
    class Interrupted(ScriptedEngine):
        def start(self, settings):
            terminate()
            raise RuntimeError("Engine core initialization failed")

    sentence = (r"SIGTERM was received\. The start of the engine failed meanwhile: "
                r"RuntimeError: Engine core initialization failed\. Run")
    with pytest.raises(StageStopped, match=sentence):
        sample(small_run(tmp_path), Interrupted())


def test_the_log_says_how_long_each_process_worked_on_a_stage_where_and_why_it_left(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)
    for name, value in {"JOB_ID": "15", "ARRAY_JOB_ID": "13", "ARRAY_TASK_ID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(StageStopped):
        sample(warehouse, Failing(terminate), part_size=4)
    sample(warehouse, part_size=4, shard=Shard(0, 2))
    sample(warehouse, part_size=4, shard=Shard(1, 2))
    told = [(row["host"], row["what"]) for row in history(warehouse.state) if row["kind"] == "worked"]
    assert {host for host, _ in told} == {f"{platform.node()}, job 13_1"}
    assert [re.sub(r"\d+ s:", "- s:", what) for _, what in told] == [
        "rollout of iteration 0, purpose train was worked on for - s: share 0/2 is done",
        "rollout of iteration 0, purpose train was worked on for - s: Stopped because SIGTERM was received, "
        "with 7 of 20 completions kept"]
    noted = [entry.what.seconds for entry in warehouse.state.entries.values()
             if isinstance(entry.what, Worked)]
    [row] = rows_of(connect(warehouse), "SELECT seconds, facts FROM stages")
    own = sum(json.loads(row["facts"])["seconds"].values())
    assert row["seconds"] == pytest.approx(sum(noted) + own, abs=0.11) and len(noted) == 2


@pytest.fixture
def completed(tmp_path: Path) -> Warehouse:
    """A rollout of six different programs in two parts."""
    warehouse = runs.new_run(tmp_path / "run")
    programs = [f"def transform(grid):\n    return grid + {number}\n" for number in range(6)]
    texts.add_rollout(warehouse, [("turn", texts.fenced(text)) for text in programs], part_size=3)
    return warehouse


def run_score(warehouse: Warehouse, *options: str) -> Result:
    return CliRunner().invoke(score, [str(warehouse.root), "--lanes", "1", *options])


def test_score_stops_at_its_time_limit_with_the_parts_it_finished(completed: Warehouse) -> None:
    stopped = run_score(completed, "--time-limit", "0")
    assert stopped.exit_code == 75
    assert "Stopped because the time limit of 0 s is over, with 0 of 2 parts scored. Run" in stopped.output
    assert not any(row["kind"] == "worked" for row in history(completed.state))       # it had not begun
    assert run_score(completed, "--time-limit", "1000").exit_code == 0


@pytest.mark.parametrize(("grace", "kept"), [("0", 0), ("1000", 1)])
def test_score_finishes_the_part_in_hand_within_the_grace_or_drops_it(
        completed: Warehouse, monkeypatch: pytest.MonkeyPatch, grace: str, kept: int) -> None:
    outcome_of = execution.outcome_of

    def signalled(*arguments, **options):
        monkeypatch.undo()
        terminate()
        return outcome_of(*arguments, **options)
    monkeypatch.setattr(execution, "outcome_of", signalled)
    monkeypatch.setattr("score.run.check_golden", lambda *_: 0)     # its programs are the first to run
    stopped = run_score(completed, "--grace", grace)
    dropped = "" if kept else " and part-00000.parquet dropped"
    assert stopped.exit_code == 75, stopped.output
    assert f"SIGTERM was received, with {kept} of 2 parts scored{dropped}. Run" in stopped.output
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert run_score(completed).exit_code == 0
    scorer, = completed.state.scorers(0, "train")
    rewards = completed.read("samples", ["reward"], iteration=0, purpose="train", scorer=scorer)["reward"]
    assert len(rewards) == 6 and rewards.null_count == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 75), (signal.SIGTERM, 0)])
def test_after_ctrl_c_a_script_does_not_go_on_because_nothing_was_left_to_stop(
        completed: Warehouse, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int) -> None:
    write = Warehouse.write_part

    def signalled(warehouse: Warehouse, table: str, part: int, *rest: Any, **keys: Any) -> bool:
        if part == 1:
            os.kill(os.getpid(), number)
        return write(warehouse, table, part, *rest, **keys)
    monkeypatch.setattr(Warehouse, "write_part", signalled)
    done = run_score(completed)
    assert done.exit_code == code and completed.state.scorers(0, "train"), done.output
    assert ("SIGINT was received; nothing is left to do." in done.output) == (code == 75)
    assert run_score(completed).exit_code == 0


def test_train_stops_at_its_time_limit_before_the_first_step_and_while_it_scores(tmp_path: Path) -> None:
    whole, run = sampled.tiny_run(tmp_path / "a"), tmp_path / "b"
    sampled.sample_rows(whole, 0)
    killed = runs.copy_run(whole, run)
    options = [*sampled.OPTIONS, "--threads", "1"]
    stopped = CliRunner().invoke(train, [str(run), *options, "--time-limit", "0"])
    assert stopped.exit_code == 75, stopped.output
    assert "the time limit of 0 s is over, before the first step: nothing had to be saved" in stopped.output
    for warehouse in (whole, killed):
        assert CliRunner().invoke(train, [str(warehouse.root), *options]).exit_code == 0
    adapters = [sampled.load_policy(warehouse, 1).trainable() for warehouse in (whole, killed)]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])


def test_a_rollout_without_its_bar_counts_all_the_same(tmp_path: Path) -> None:
    """tqdm reads TQDM_DISABLE when it is imported, so another process has to run it."""
    warehouse = small_run(tmp_path)
    code = ("import sys\n"
            "from tests.building.scripted import sample\n"
            "from warehouse.store.run_folder import open_warehouse\n"
            "sample(open_warehouse(sys.argv[1]))\n")
    subprocess.run([sys.executable, "-c", code, warehouse.root], check=True, cwd=Path(__file__).parents[2],
                   env=os.environ | {"TQDM_DISABLE": "1"})
    assert warehouse.stage("rollout", iteration=0, purpose="train").is_complete()


def test_the_time_limit_counts_from_the_start_of_a_command_that_has_to_run_anew(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "spent", 3600.0)
    assert StopRequest(3000).asked() and not StopRequest(90000).asked()


def test_ctrl_c_with_the_sigterm_that_a_script_sends_upon_it_stops_in_order() -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked() and stop.reason == "SIGINT was received"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, former)
