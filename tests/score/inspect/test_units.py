"""`score try` and `score explain`: what a person reads of tests, calls and cases."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from score.cli import score
from score.inspect.units import unit_lines
from tests.building.runs import new_run

TESTS = ["assert add(1, 2) == 3", "want = 5\nassert add(2, 2) == want", "assert add(1, 1) == 3, 'two'"]
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 5\n"
UNITTEST = ("import unittest\nclass T(unittest.TestCase):\n"
            "    def test_sum(self):\n        self.assertEqual(add(1, 2), 4)\n")
CALLS = [{"args": [1, 2], "expected": 3}, {"args": [2], "kwargs": {"b": "x"}, "expected": 5},
         {"args": [2, 2], "expected": 5}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("try")
    payloads = {"tests": {"tests": TESTS},
                "check": {"tests": CHECK}, "class": {"tests": UNITTEST}, "calls": {"calls": CALLS}}
    new_run(folder / "run", {name: ("function", {"entry_point": "add", **payload})
                             for name, payload in payloads.items()})
    (folder / "program.py").write_text("def add(a, b):\n    return a + b\n")
    return folder


@pytest.mark.parametrize(("task", "shown"), [
    ("tests", ["test 1: right   assert add(1, 2) == 3", "test 2: wrong   assert add(2, 2) == want",
               "  failed   assert add(2, 2) == want", "  answered 4",
               "test 3: wrong   assert add(1, 1) == 3, 'two'", "  AssertionError: two"]),
    ("check", ["test 1: wrong   check(candidate)", "  failed   assert candidate(2, 2) == 5", "  answered 4"]),
    ("class", ["test 1: wrong   T.test_sum", "  AssertionError: 3 != 4"]),
    ("calls", ["call 1: right   add(1, 2)", 'call 2: wrong   add(2, b="x")', "  expected 5",
               '  raised   "TypeError"', "call 3: wrong   add(2, 2)", "  expected 5", "  got      4"])])
def test_a_failed_test_is_shown_with_what_was_expected_and_what_came(folder: Path, task: str,
                                                                     shown: list[str]) -> None:
    said = CliRunner().invoke(score, ["try", str(folder / "run"), str(folder / "program.py"),
                                      "--task", task])
    lines = said.output.splitlines()
    end = next(at for at, line in enumerate(lines) if line.startswith("--- verdict"))
    assert lines[1:end] == shown


def test_try_loads_what_score_would_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "mine.py").write_text("ONE = 1\n")
    (folder / "uses.py").write_text("import mine\ndef add(a, b):\n    return a + b + mine.ONE - 1\n")
    words = ["try", str(folder / "run"), str(folder / "uses.py"), "--task", "tests"]
    assert "import_not_allowed" in CliRunner().invoke(score, words).output
    options = ["--allow-import", "mine", "--import-path", str(folder / "own")]
    assert "test 1: right" in CliRunner().invoke(score, [*words, *options]).output
    (folder / "run/config.toml").write_text(
        f'[score]\nallow-import = "mine"\nimport-path = ["{folder}/own"]\nreward = "tests-share"\n')
    assert "config.toml sets --import-path" in CliRunner().invoke(score, words).output
    monkeypatch.setenv("ROLLHOUSE_TRUST", str(folder))
    assert "reward 0.3333" in CliRunner().invoke(score, words).output


def test_try_asks_the_reward_file_of_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(
        "def mine(prompts, completions, completion_ids, correct_share, group_id, **columns):\n"
        "    [text], [ids] = completions, completion_ids\n"
        "    return [{'share': correct_share[0], 'ids': len(ids), 'text': len(text)}]\n")
    words = ["try", str(folder / "run"), str(folder / "program.py"), "--task", "check", "--reward-file"]
    (folder / "run/config.toml").unlink(missing_ok=True)
    told = "not correct\nreward 32 = share 0 + ids 0 + text 32\nThe reward file got no tokens"
    assert told in CliRunner().invoke(score, [*words, f"{folder}/mine.py:mine"]).output
    (folder / "run/config.toml").write_text(f'[score]\nreward-file = "{folder}/mine.py:mine"\n')
    monkeypatch.setenv("ROLLHOUSE_TRUST", str(folder))
    assert told in CliRunner().invoke(score, words[:-1]).output
    assert "reward 0\n" in CliRunner().invoke(score, [*words[:-1], "--reward", "exact"]).output


def test_try_takes_a_whole_answer(folder: Path) -> None:
    (folder / "run/config.toml").unlink(missing_ok=True)
    (folder / "answer.md").write_text("Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.\n")
    (folder / "marks.py").write_text('def add(a, b):\n    """\n    ```python\n    1 / 0\n    ```\n    """\n'
                                     "    return a + b\n")
    for name in ("answer.md", "marks.py"):
        said = CliRunner().invoke(score, ["try", str(folder / "run"), str(folder / name), "--task", "tests"])
        assert "test 1: right" in said.output and "  answered 4" in said.output


def test_the_answer_of_a_call_that_is_to_change_its_argument_is_not_shown(folder: Path) -> None:
    new_run(folder / "in-place", {"t": ("function", {"entry_point": "f", "tests": [
        "a = [2, 2]\nf(a)\nassert a == [2]"]})})
    (folder / "copies.py").write_text("def f(a):\n    return [7]\n")
    words = ["try", str(folder / "in-place"), str(folder / "copies.py"), "--task", "t"]
    said = CliRunner().invoke(score, words).output
    assert "test 1: wrong   assert a == [2]" in said and "answered" not in said


def test_cases_show_input_expected_and_output_where_they_are_wrong() -> None:
    payload = {"cases": [{"input": "2\n", "output": "4\n"}, {"input": "3\n", "output": "7\n"}]}
    assert unit_lines("stdio", payload, ["4", "6\n"]) == [
        "case 1: right", "case 2: wrong", '  input    "3\\n"', '  expected "7\\n"', '  got      "6\\n"']
    assert unit_lines("stdio", payload, None) == ["(none)"]
    assert unit_lines("answer", {"answer": "4", "match": "numeric"}, ["5"]) == ['got "5"', 'expected "4"']


def test_results_that_no_line_can_show_and_too_many_of_them_are_told_too() -> None:
    payload = {"entry_point": "f", "calls": [{"args": [1], "expected": 3}]}
    huge = ["value", {"$": "int", "v": hex(10**5000)}]
    assert unit_lines("function", payload, [huge, ["value", 3]]) == [
        "call 1: wrong   f(1)", "  expected 3", "  got      a number of more digits than Python writes"]


def test_what_a_program_says_cannot_steer_the_terminal() -> None:
    payload = {"entry_point": "f", "tests": ["assert f() == 1"]}
    lines = unit_lines("function", payload, json.loads('[[false, "Error", "\\u001b[31mred", "assertion"]]'))
    assert not any("\x1b" in line for line in lines) and "red" in lines[1]


def test_a_config_that_is_no_toml_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[score\n")
    (tmp_path / "program.py").write_text("x = 1")
    said = CliRunner().invoke(score, ["try", str(tmp_path), str(tmp_path / "program.py"), "--task", "t0"])
    assert said.exit_code == 1 and said.output.startswith("Error: ") and "is not valid TOML" in said.output


@pytest.mark.parametrize("setting", ["cpu-seconds = [1]", "cpu-seconds = true", "lanes = 1.5"])
def test_try_and_gold_refuse_what_score_refuses(folder: Path, tmp_path: Path, setting: str) -> None:
    (tmp_path / "config.toml").write_text(f"[score]\nreward-file = 'a.py:b'\n{setting}\n")
    (tmp_path / "tasks.jsonl").touch()
    for words in (["try", str(tmp_path), str(folder / "program.py"), "--task", "t0"],
                  ["gold", str(tmp_path / "tasks.jsonl"), str(folder / "program.py"), "--config",
                   str(tmp_path / "config.toml")], [str(tmp_path)]):
        said = CliRunner().invoke(score, words)
        told = f"config.toml, line 3: [score] {setting.partition(' ')[0]} = "
        assert said.exit_code == 1 and told in said.output
