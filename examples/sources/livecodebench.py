"""LiveCodeBench's code generation files: programs over stdin, and methods of a class `Solution`.

    warehouse init RUN --model .. --tasks "examples/sources/livecodebench.py:tasks?file=test5.jsonl"
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.sources.benchmarks import ask
from warehouse.sources.tables import Row, read_rows, value_of
from warehouse.store.errors import StageError

# What the project has imported before each program, whose starter code says List without an import.
MODULES = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random",
           "statistics", "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")
SETUP = "\n".join([*(f"from {name} import *" for name in MODULES), f"import {', '.join(MODULES)}",
                   "sys.setrecursionlimit(50000)"])


class PlainUnpickler(pickle.Unpickler):
    """For texts and numbers alone: whatever needs a class, or could run anything, is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Never gives a class."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def tasks(file: str) -> Iterator[Row]:
    """The tasks of a file as objects with task_id, kind, messages and payload."""
    for number, (where, row) in enumerate(read_rows(Path(file))):
        yield task_of(row, number, where)


def task_of(row: Row, number: int, where: str) -> Row:
    """A row of test*.jsonl: question_content, starter_code, public and private test cases, metadata."""
    tests = [*_tests(row, "public_test_cases", where), *_tests(row, "private_test_cases", where)]
    if not tests:
        raise StageError(f"{where} has no test case. Correct it.")
    question = value_of(row, "question_content", where, str).strip()
    task_id = f"livecodebench-{row.get('question_id') or number}"
    starter = str(row.get("starter_code") or "").strip()
    function = _json(row.get("metadata") or "{}", f"{where}, metadata").get("func_name")
    if any(test.get("testtype") == "functional" for test in tests) and not isinstance(function, str):
        raise StageError(f"{where}: metadata names no 'func_name'. Correct it.")
    if function:
        entry = f"Solution.{function}" if "class Solution" in starter else function
        calls = [{"args": [_json(line, where) for line in test["input"].split("\n") if line.strip()],
                  "expected": _json(test["output"], where)} for test in tests]
        return {"task_id": task_id, "kind": "function", "payload": {
            "entry_point": entry, "calls": calls, "tolerance": 1e-5, "program_setup": SETUP}, "messages": ask(
                f"{question}\nBegin with this code.\n```python\n{starter}\n```", "program")}
    cases = [{"input": test["input"], "output": test["output"]} for test in tests]
    messages = ask(f"{question}\nThe program reads from standard input and writes to standard output.",
                   "program")
    return {"task_id": task_id, "kind": "stdio", "messages": messages, "payload": {
        "cases": cases, "compare": "values", "program_setup": SETUP}}


def _tests(row: Row, name: str, where: str) -> list[dict[str, Any]]:
    """A column of test cases: JSON, or (the private ones) JSON inside pickle, zlib and base64."""
    text = value_of(row, name, where, (str, list, type(None))) or []
    if isinstance(text, str):
        place = f"{where}, {name}"
        try:
            text = json.loads(text)
        except ValueError:
            try:
                packed = zlib.decompress(base64.b64decode(text))
                text = _json(PlainUnpickler(io.BytesIO(packed)).load(), place)
            except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError) as error:
                raise StageError(f"{place} cannot be unpacked: {error}. Fetch it again.") from error
    if not all(isinstance(test, dict) and isinstance(test.get("input"), str)
               and isinstance(test.get("output"), str) for test in text):
        raise StageError(f"{where}: '{name}' is not a list of objects with the texts 'input' and 'output'. "
                         "Correct it.")
    return list(text)


def _json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise StageError(f"{where} holds {str(text)[:60]!r}, which is not JSON. Correct it.") from error
