"""What a program returned for each test, call or case, and what was expected."""

import json
import re
from collections.abc import Iterator
from typing import Any

from score.protocol import plain_data
from score.tasks.function import FunctionTask, is_expected
from score.tasks.kinds import load_task
from score.tasks.script import ScriptTask
from score.tasks.script import is_expected as is_expected_text
from warehouse.store.errors import printable

FAILED_AT = re.compile(r"line (\d+)(?: of the setup)?(?:, (.*))?", re.DOTALL)    # as lanes say it
CALL_OF_TEST = re.compile(r"__run__\('(.*)'\)")     # of test_sources.calls_of_tests
LONGEST = 400                       # characters of a value


def unit_lines(kind: str, payload: dict[str, Any], outputs: list[Any] | None) -> list[str]:
    """Lines about the outputs of a task of any kind but grids; `outputs` as the row has them."""
    if outputs is None:
        return ["(none)"]
    task = load_task("", kind, payload).content if kind in ("function", "stdio") else None
    if isinstance(task, ScriptTask):
        return [line for number, (case, text) in enumerate(zip(task.cases, outputs, strict=False), start=1)
                for line in case_lines(number, task, case, text)]
    if isinstance(task, FunctionTask) and task.calls:
        return [line for number, result in enumerate(outputs[:len(task.calls)], start=1)
                for line in call_lines(number, task, result)]
    if isinstance(task, FunctionTask):
        return [line for number, verdict in enumerate(outputs, start=1)
                for line in test_lines(number, task, verdict)]
    wanted = [payload[name] for name in ("answer", "rows", "groups") if name in payload]
    return [f"got {shorten(unit)}" for unit in outputs] + [f"expected {shorten(value)}" for value in wanted]


def case_lines(number: int, task: ScriptTask, case: tuple[str, str], text: Any) -> Iterator[str]:
    """Lines about a case of stdio; a checker's verdict shows in the reward only."""
    given, expected = case
    right = isinstance(text, str) and is_expected_text(text, expected, task)
    if task.checker:
        yield f"case {number}, judged by the task's checker"
    else:
        yield f"case {number}: {'right' if right else 'wrong'}"
    if not right:
        for name, value in (("input", given), ("expected", expected), ("got", text)):
            yield f"  {name:<8} {shorten(value)}"


def call_lines(number: int, task: FunctionTask, result: Any) -> Iterator[str]:
    call = task.calls[number - 1]
    keywords = plain_data.restored(call.keywords)
    arguments = [*map(shorten, plain_data.restored(call.arguments)),
                 *(f"{name}={shorten(value)}" for name, value in keywords.items())]
    right = is_expected(result, call, task.tolerance)
    yield f"call {number}: {'right' if right else 'wrong'}   {task.entry_point}({', '.join(arguments)})"
    if not right:
        kind, value = (*result, None)[:2] if isinstance(result, list) and result else ("error", None)
        yield f"  expected {shorten(call.expected)}"
        yield f"  got      {shorten(_value(value))}" if kind == "value" else f"  raised   {shorten(value)}"


def test_lines(number: int, task: FunctionTask, verdict: Any) -> Iterator[str]:
    """Lines about a test: the assertion that failed, and the program's last answer."""
    unit = task.units[number - 1] if number <= len(task.units) else ""
    passed, name, message = (*verdict, "", "")[:3] if isinstance(verdict, list) else (bool(verdict), "", "")
    called = CALL_OF_TEST.sub(r"\1", "".join(unit.splitlines()[-1:]))
    yield f"test {number}: {'right' if passed else 'wrong'}   {printable(called)}"
    if passed:
        return
    if at := FAILED_AT.fullmatch(str(message)):
        lines = (task.setup if "of the setup" in message else unit).splitlines()
        place = int(at[1]) - 1
        failed = lines[place].strip() if place < len(lines) else ""
        if failed not in ("", unit.strip()):
            yield f"  failed   {printable(failed)}"
        yield from [f"  answered {printable(at[2])}"] if at[2] else []
    else:
        yield f"  {printable(': '.join(filter(None, (name, str(message)[:LONGEST]))))}"


def shorten(value: Any) -> str:
    """A value on one printable line."""
    try:
        return printable(json.dumps(value, default=repr))[:LONGEST]
    except ValueError:
        return "a number of more digits than Python writes"


def _value(tagged: Any) -> Any:
    try:
        return plain_data.untag(tagged)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        return tagged
