"""A taskset for verifiers: its tasks in a run, its rewards on the completions."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from score.cli import score
from tests.building.runs import fake_model
from tests.building.texts import add_rollout
from warehouse.init import init_run
from warehouse.sources.named import parse_source, read_source
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

vf = pytest.importorskip("verifiers.v1", reason="verifiers: pip install 'rollhouse[verifiers]'")

TASKS = "examples/sources/verifiers.py:tasks?package="
WORDS = '''
import asyncio
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Settings(vf.TaskConfig):
    checker: {setting}

class Config(vf.TasksetConfig):
    task: Settings = Settings()
    words: str = "abc lamp"

class Backwards(vf.Task[Data, vf.State, Settings]):
    NEEDS_CONTAINER = {container}

    @vf.reward
    async def is_reversed(self, trace: vf.Trace) -> float:
        if "import" in trace.last_reply:
            import graphlib
        return await asyncio.to_thread(lambda: float(trace.last_reply == self.data.answer))

    @vf.reward(weight=-0.5)
    async def is_long(self, task, trace: vf.Trace{more}) -> float:
        assert [message.role for message in trace.messages] == ["system", "user", "assistant"]
        return float(len(trace.last_reply) > len(1 / len(trace.last_reply) and task.prompt))

    @vf.metric
    async def letters(self, trace) -> float:
        return len(trace.last_reply)

class Words(vf.Taskset[Backwards, Config]):
    INFINITE = {endless}

    def load(self):
        for word in self.config.words.split():
            yield Backwards(Data(prompt=f"Say {{word}} backwards.", answer=word[::-1],
                                 system_prompt="One word."), self.config.task)
{own}
__all__ = ["Words", {exports}]
'''
PLAIN = {"setting": "int = 1", "container": False, "more": "", "endless": False, "own": "", "exports": ""}
ENVIRONMENT = "class Two(vf.SingleAgentEnv):\n    pass\n"


def write_taskset(folder: Path, monkeypatch: pytest.MonkeyPatch, **differences: object) -> None:
    (folder / "made_up_words.py").write_text(WORDS.format_map({**PLAIN, **differences}))
    folder.chmod(0o755)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "made_up_words", raising=False)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    write_taskset(tmp_path, monkeypatch)
    sources = f"{TASKS}made-up-words", f"more={TASKS}made_up_words&count=1&words=level"
    init_run(tmp_path / "run", str(fake_model(tmp_path / "model")), sources, (), None)
    return open_warehouse(tmp_path / "run")


def scored(run: Warehouse, *options: str) -> str:
    done = CliRunner().invoke(score, [str(run.root), "--tier", "C", "--lanes", "1",
                                      "--import-path", str(run.root.parent), "--import-path",
                                      "examples/graders", *options])
    return f"{done.exit_code} {done.output}"


def test_completions_get_the_rewards_of_their_taskset(run: Warehouse) -> None:
    rows = {row["task_id"]: row for row in run.read("tasks").to_pylist()}
    assert list(rows) == ["made_up_words-0", "made_up_words-1", "made_up_words-level-0"]
    assert json.loads(rows["made_up_words-1"]["messages"]) == [
        {"role": "system", "content": "One word."}, {"role": "user", "content": "Say lamp backwards."}]
    assert json.loads(rows["made_up_words-level-0"]["payload"])["config"]["words"] == "level"
    add_rollout(run, [("made_up_words-0", "cba"), ("made_up_words-0", "no"), ("made_up_words-1", "x" * 9000),
                      ("made_up_words-level-0", " level ")])
    assert "reward 0.375  correct 0.500" in scored(run)
    [scorer] = run.state.scorers(0, "train")
    columns = ["reward", "reward_parts", "extra", "correct"]
    got = run.read("samples", columns, iteration=0, purpose="train", scorer=scorer)
    assert got.column("reward").to_pylist() == [1.0, 0.0, -0.5, 1.0]
    assert json.loads(got.column("reward_parts")[2].as_py()) == {"is_reversed": 0.0, "is_long": -0.5}
    assert json.loads(got.column("extra")[2].as_py()) == {"letters": 9000.0}


@pytest.mark.parametrize(("answer", "why"), [
    ("", "ZeroDivisionError"), ("import", "what scores imports graphlib, which no lane allows")])
def test_a_reward_that_fails_stops_the_stage_and_is_no_zero(run: Warehouse, answer: str, why: str) -> None:
    add_rollout(run, [("made_up_words-0", f"{answer}{blanks}") for blanks in ("", " ")])
    said = scored(run)
    assert said.startswith("1 ") and "The grader of 2 of 2 programs" in said and why in said


@pytest.mark.parametrize(("differences", "needs"), [
    ({"container": True}, "needs a runtime. A rollout has one prompt"),
    ({"more": ", runtime"}, "needs a runtime for its reward is_long"),
    ({"setting": "vf.JudgeConfig = vf.JudgeConfig()"}, "needs a judge model"),
    ({"own": ENVIRONMENT, "exports": "'Two'"}, "needs an environment of its own"),
    ({"endless": True}, "has tasks without end. Say how many, as in &count=500")])
def test_what_needs_more_than_an_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   differences: dict[str, object], needs: str) -> None:
    write_taskset(tmp_path, monkeypatch, **differences)
    with pytest.raises(StageError, match=needs):
        read_source(parse_source(f"{TASKS}made_up_words", heldout=False))


@pytest.mark.parametrize(("source", "sentence"), [
    ("made_up_words&wods=x", "cannot be loaded: wods: Extra inputs are not permitted"),
    ("not-there-at-all", "cannot be loaded: ModuleNotFoundError: .* 'not_there_at_all' not found")])
def test_what_cannot_be_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str,
                                       sentence: str) -> None:
    write_taskset(tmp_path, monkeypatch)
    with pytest.raises(StageError, match=sentence):
        read_source(parse_source(f"{TASKS}{source}", heldout=False))


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.sources.verifiers.version", lambda package: "0.3.1")
    with pytest.raises(StageError, match=r"needs version 0.4 of its library, and 0.3.1 is installed. Run "):
        read_source(parse_source(f"{TASKS}made_up_words", heldout=False))
