"""Canonical solutions and cheats, judged by `score gold`: those of a file, and those that a source brings."""

import dataclasses
import gzip
import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import JSON_KEYS
from score.cheats import BODIES
from score.cli import score
from score.gold import GoldVerdict
from warehouse.cli import cli

MODEL = Path(__file__).parents[2] / "examples" / "starter" / "model"
HELPER = "def half(x):\n    return x / 2\ndef f(x):\n    return half(x) + 1\n"
PAYLOADS = {"plain": ("function", {"entry_point": "f", "tests": ["assert f(2) == 2"]}),
            "helper": ("function", {"entry_point": "f", "tests": ["assert f(2) == half(2) + 1"]}),
            "broken": ("function", {"entry_point": "f", "tests": ["assert f(2) == 5"]}),
            "text": ("answer", {"answer": "12", "match": "numeric"}),
            "lonely": ("answer", {"answer": "1"})}
GOLD = [{"task_id": "plain", "code": HELPER}, {"task_id": "helper", "code": HELPER},
        {"task_id": "broken", "code": HELPER}, {"task_id": "text", "text": "It is 12."},
        {"task_id": "elsewhere", "code": ""}]
TOLD = ["3 of 4 canonical solutions are judged right",
        "  not right: broken: test 1: wrong assert f(2) == 5; answered 2.0", "  no solution of 1 task",
        "1 of 4 tasks pays programs that solve nothing",
        "  plain: returns its argument; test 1 passes: assert f(2) == 2",
        "1 solution left out, for there is no such task: elsewhere"]


def test_every_key_of_the_output_is_documented():
    known = {field.name for field in dataclasses.fields(GoldVerdict)}
    assert JSON_KEYS["score gold SOURCE --output FILE"].keys() == known


@pytest.fixture
def files(tmp_path):
    """A task file and its solutions."""
    messages = [{"role": "user", "content": "?"}]
    rows = [{"task_id": name, "kind": kind, "messages": messages, "payload": payload}
            for name, (kind, payload) in PAYLOADS.items()]
    for name, lines in (("tasks.jsonl", rows), ("gold.jsonl", GOLD)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_gold_and_cheats_are_judged_of_a_run_and_of_a_source_alike(files):
    made = CliRunner().invoke(cli, ["init", str(files / "run"), "--model", str(MODEL), "--tasks",
                                    str(files / "tasks.jsonl")])
    assert made.exit_code == 0, made.output
    solved = "".join(f"{json.dumps(row)}\n" for row in GOLD).replace('"code"', '"solution"')
    (files / "solved.jsonl").write_text(solved)
    for where, gold in (("run", "gold"), ("tasks.jsonl", "gold"), ("run", "solved")):
        judged = CliRunner().invoke(score, ["gold", str(files / where), str(files / f"{gold}.jsonl")])
        assert judged.output.splitlines() == TOLD
    judged = CliRunner().invoke(score, ["gold", str(files / "run")])
    assert judged.exit_code == 1 and "run has no solutions; a run keeps none. Name" in judged.output
    (files / "table.jsonl").write_text(json.dumps({"q": "?", "a": "1"}) + "\n")
    judged = CliRunner().invoke(score, ["gold", f"hf:{files}/table.jsonl?prompt=q&answer=a"])
    assert "has no solutions" in judged.output       # a source, though it looks like an address


@pytest.mark.parametrize(("kind", "payload", "paid"), [
    ("function", {"entry_point": "f", "tests": ["assert f([1])"]},
     "returns True, returns float('nan'), returns what equals everything, returns its argument, "
     "returns a function that does nothing; test 1 passes: assert f([1])"),
    ("function", {"entry_point": "f", "tests": ["@f\ndef check(): assert 1 == 2\ncheck()"]},
     "returns a function that does nothing; test 1 passes: check()"),
    ("function", {"entry_point": "S.f", "tests": ["x = [2, 1]\ns = S()\ns.f(x)\nassert x == []"]},
     "empties its argument; test 1 passes: assert x == []"),
    ("function", {"entry_point": "f", "tests": ["try:\n    f()\nexcept BaseException:\n    pass"]},
     ", ".join(BODIES) + "; test 1 passes: pass"),
    ("function", {"entry_point": "f", "calls": [{"args": [], "expected": []}]},
     "returns [], returns an array of nothing; call 1 passes: f()"),
    ("stdio", {"cases": [{"input": "2\n", "output": "2\n"}]}, "prints its input; case 1: right"),
    ("stdio", {"cases": [{"input": "2\n", "output": "NO\n"}, {"input": "4\n", "output": "NO\n"}]},
     "prints NO; case 1: right (and 1 more)"),
    ("stdio", {"cases": [{"input": "2\n", "output": "4\n"}], "checker":
               "def check(i, o, e):\n    if abs(float(o) - float(e)) > 1e-6: return False\n    return True"},
     "prints nan; case 1, judged by the task's checker"),
    ("function", {"entry_point": "f", "tests": ["assert f(1) == 2"]}, ""),
    ("stdio", {"cases": [{"input": "2\n", "output": "4\n"}]}, "")])
def test_tests_that_pay_a_cheat_are_named(files, kind, payload, paid):
    messages = [{"role": "user", "content": "?"}]
    row = {"task_id": "weak", "kind": kind, "messages": messages, "payload": payload}
    (files / "tasks.jsonl").write_text(json.dumps(row))
    (files / "gold.jsonl").write_text(json.dumps({"task_id": "weak", "code": ""}))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl")])
    lines = found.output.splitlines()
    assert lines[2:] == (["1 of 1 task pays programs that solve nothing", f"  weak: {paid}"] if paid else
                         ["no task pays programs that solve nothing"])


def test_what_programs_that_solve_nothing_get_by_share_is_named(files):
    row = {"task_id": "even", "kind": "function", "messages": [{"role": "user", "content": "?"}], "payload": {
        "entry_point": "f", "tests": ["assert f(2) is True", "assert f(4) is True", "assert f(3) is False"]},
        "solution": "def f(x): return x % 2 == 0\n"}
    (files / "tasks.jsonl").write_text(json.dumps(row))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl")])
    assert found.exit_code == 0 and found.output.splitlines()[1:] == [
        "no task pays programs that solve nothing",
        "`--reward tests-share` would pay such programs a part of 1 task:", "  0.67 of even: returns True"]


def test_a_grader_that_pays_for_silence_is_named(files):
    (files / "kind_grader.py").write_text("def grade(text, payload):\n    return 'no' not in text\n")
    files.chmod(0o755)
    row = {"task_id": "kind", "kind": "graded", "messages": [{"role": "user", "content": "?"}],
           "payload": {"grader": "kind_grader"}}
    (files / "tasks.jsonl").write_text(json.dumps(row))
    (files / "gold.jsonl").write_text(json.dumps({"task_id": "kind", "text": "yes"}))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl"),
                                       "--import-path", str(files)])
    assert found.output.splitlines()[1:] == ["1 of 1 task pays programs that solve nothing",
                                             '  kind: says nothing; got ""']


def test_the_solutions_that_a_source_brings_are_judged(files):
    rows = [json.loads(line) for line in (files / "tasks.jsonl").read_text().splitlines()]
    solved = [{**row, "solution": "It is 12." if row["kind"] == "answer" else HELPER} for row in rows]
    (files / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in solved))
    judged = CliRunner().invoke(score, ["gold", str(files / "solved.jsonl")])
    assert judged.exit_code == 1 and judged.output.startswith("3 of 5 canonical solutions"), judged.output
    fenced = [{**row, "solution": f"It is:\n```python\n{HELPER}\n```\n"} if row["kind"] == "function" else row
              for row in solved]
    (files / "fenced.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fenced))
    again = CliRunner().invoke(score, ["gold", str(files / "fenced.jsonl")])
    assert again.output.splitlines()[0] == judged.output.splitlines()[0]
    refused = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl")])
    assert refused.exit_code == 1 and "has no solutions; a run keeps none. Name the source" in refused.output


def test_a_file_of_solutions_may_be_packed(files):
    (files / "gold.jsonl.gz").write_bytes(gzip.compress((files / "gold.jsonl").read_bytes()))
    judged = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl.gz")])
    assert judged.output.splitlines() == TOLD, judged.exception


def test_limits_that_a_solution_needs_are_named(files):
    slow = "import time\ndef f(x):\n    while time.process_time() < 0.5: pass\n    return x\n"
    (files / "gold.jsonl").write_text(json.dumps({"task_id": "plain", "code": slow}))
    (files / "config.toml").write_text('[score]\ncpu-seconds = 0.2\nreward = "exact"\n')
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl"),
                                       "--config", str(files / "config.toml")])
    assert found.output.splitlines()[:2] == [
        "1 of 1 canonical solutions are judged right",
        "  1 of them only with `score --cpu-seconds 0.8 --memory-mib 2048`: plain"], found.output


def test_solutions_that_are_right_if_they_may_change_their_arguments_are_named(files):
    row = {"task_id": "heads", "kind": "function", "messages": [{"role": "user", "content": "?"}],
           "payload": {"entry_point": "f", "tests": ["a = [2, 1, 1]\nk = f(a)\nassert a[:k] == [1, 2]"]},
           "solution": "def f(a):\n    a[:] = sorted(set(a))\n    return len(a)\n"}
    (files / "tasks.jsonl").write_text(json.dumps(row))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl")])
    assert found.exit_code == 1 and found.output.splitlines()[:2] == [
        "0 of 1 canonical solutions are judged right",
        '  1 more with `"in_place": true` in the payload: heads']
    row["payload"]["in_place"] = True
    (files / "tasks.jsonl").write_text(json.dumps(row))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl")])
    assert found.exit_code == 0 and found.output.startswith("1 of 1 canonical solutions are judged right\n")


def test_programs_of_livecodebench_find_what_its_harness_imports(files):
    """Starter code says List without importing it, programs read sys.stdin, lines compare by value."""
    starter = "class Solution:\n    def more(self, xs: List[int], k: int) -> List[int]:\n"
    rows = [{"question_id": name, "question_content": "?", "starter_code": code, "metadata": json.dumps(told),
             "private_test_cases": "[]", "public_test_cases": json.dumps([{
                 "input": given, "output": wanted, "testtype": "functional" if code else "stdin"}])}
            for name, code, told, given, wanted in [("3000", starter, {"func_name": "more"}, "[1]\n2", "[3]"),
                                                    ("abc_a", "", {}, "1 2\n", "a\n1.0 2\n")]]
    (files / "lcb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    right = {"3000": f"{starter}        return list(deque(x + k for x in xs))\n",
             "abc_a": "print('a')\nprint(*(f'{int(x)}.00' for x in sys.stdin.read().split()))\n"}
    for solutions, told in ((right, "2 of 2"), ({**right, "abc_a": "print('a', 1, 2)"}, "1 of 2")):
        (files / "gold.jsonl").write_text("".join(
            json.dumps({"task_id": f"livecodebench-{name}", "code": code}) + "\n"
            for name, code in solutions.items()))
        tasks = f"examples/sources/livecodebench.py:tasks?file={files / 'lcb.jsonl'}"
        judged = CliRunner().invoke(score, ["gold", tasks, str(files / "gold.jsonl")])
        assert judged.output.startswith(f"{told} canonical solutions are judged right"), judged.output


@pytest.mark.parametrize(("text", "message"), [
    ("[1]", "line 1 is not an object with task_id and code"),
    ('{"task_id": "x", "code": ""}', "has no solution of any task")])
def test_a_file_of_other_lines_is_refused(files, text, message):
    (files / "gold.jsonl").write_text(text)
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl")])
    assert found.exit_code == 1 and message in found.output


def test_solutions_of_a_file_go_before_those_of_the_sources(files):
    rows = [json.loads(line) for line in (files / "tasks.jsonl").read_text().splitlines()]
    solved = [{**row, "solution": "It is 3."} for row in rows if row["kind"] == "answer"]
    (files / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in solved))
    judged = CliRunner().invoke(score, ["gold", str(files / "solved.jsonl"), str(files / "gold.jsonl")])
    assert judged.exit_code == 1 and judged.output.startswith("1 of 2 canonical solutions"), judged.output


def test_a_missing_grader_is_named_with_its_installation(files, monkeypatch):
    def version(package):
        raise PackageNotFoundError(package)
    monkeypatch.setattr("warehouse.tasks.graders.version", version)
    messages = [{"role": "user", "content": "?"}]
    (files / "tasks.jsonl").write_text(json.dumps({"task_id": "half", "kind": "math", "messages": messages,
                                                   "payload": {"answer": "1/2"}}))
    (files / "gold.jsonl").write_text(json.dumps({"task_id": "half", "text": "1/2"}))
    found = CliRunner().invoke(score, ["gold", str(files / "tasks.jsonl"), str(files / "gold.jsonl")])
    assert found.exit_code == 1 and "Run pip install 'rollhouse[math]'" in found.output
