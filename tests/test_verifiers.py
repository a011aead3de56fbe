"""A taskset for verifiers: its tasks in a run, its rewards on the completions."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from score.cli import score
from tests.building.runs import fake_model
from tests.building.texts import add_rollout
from warehouse.init import init_run
from warehouse.store.run_folder import open_warehouse

vf = pytest.importorskip("verifiers.v1", reason="verifiers: pip install 'rollhouse[verifiers]'")

WORDS = '''
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Backwards(vf.Task[Data]):
    NEEDS_CONTAINER = {container}

    @vf.reward
    async def is_reversed(self, trace: vf.Trace) -> float:
        return float(trace.assistant_messages[-1].content.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def is_short(self, task, trace: vf.Trace{more}) -> float:
        return float(len(trace.assistant_messages[-1].content) < 2 * len(task.prompt))

class Words(vf.Taskset[Backwards]):
    def load(self):
        for word in ("abc", "lamp"):
            yield Backwards(Data(prompt=f"Say {{word}} backwards.", answer=word[::-1],
                                 system_prompt="One word."), self.config.task)

__all__ = ["Words"]
'''


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, container, more in (("words", False, ""), ("boxed_words", True, ""),
                                  ("run_words", False, ", runtime")):
        (tmp_path / f"{name}.py").write_text(WORDS.format(container=container, more=more))
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("examples.verifiers_tasks")


def test_completions_get_the_rewards_of_their_taskset(example: ModuleType, tmp_path: Path) -> None:
    said = CliRunner().invoke(example.write_tasks, ["words", "--output", str(tmp_path / "tasks.jsonl")])
    assert said.exit_code == 0 and "2 tasks" in said.output
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert rows[1]["messages"] == [{"role": "system", "content": "One word."},
                                   {"role": "user", "content": "Say lamp backwards."}]
    tasks, model = str(tmp_path / "tasks.jsonl"), str(fake_model(tmp_path / "model"))
    init_run(tmp_path / "run", model, (tasks,), (), None)
    run = open_warehouse(tmp_path / "run")
    add_rollout(run, [("words-0", "cba"), ("words-0", "no"), ("words-1", "pmal" + " " * 90),
                      ("words-1", "x" * 90)])
    done = CliRunner().invoke(score, [str(run.root), "--reward-file", f"{example.__file__}:reward"])
    assert done.exit_code == 0, done.output
    [scorer] = run.scorers(0, "train")
    rewards = run.read("samples", ["reward"], iteration=0, purpose="train", scorer=scorer)
    assert rewards.column("reward").to_pylist() == [1.5, 0.5, 1.0, 0.0]


@pytest.mark.parametrize(("package", "needs"), [
    ("boxed_words", "needs a runtime; a rollout"), ("run_words", "needs a runtime for its reward is_short")])
def test_what_needs_more_than_an_answer_is_refused(example: ModuleType, tmp_path: Path, package: str,
                                                   needs: str) -> None:
    said = CliRunner().invoke(example.write_tasks, [package, "--output", str(tmp_path / "tasks.jsonl")])
    assert said.exit_code == 1 and needs in said.output and not (tmp_path / "tasks.jsonl").exists()
