"""The required content of a task's payload, by kind: checked at import and at scoring."""

import ast
import difflib
import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from warehouse.store.errors import StageError

MAX_GRID_SIDE = 30
MATCHES = ("exact", "numeric")
COMPARISONS = ("tokens", "lines", "values")
NUMBER = (int, float)
# Fields that need not be there, by which answers are judged.
JUDGES = {"calls", "checker", "compare", "in_place", "label", "match", "modules", "program_setup",
          "tolerance"}
ALIKE = 0.82            # `difflib`'s ratio from which a name is a misspelt one
Code = tuple[str, list[ast.stmt]]       # a source and its statements
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
IDLE = (*DEFINITIONS, ast.Import, ast.ImportFrom)       # statements that run nothing of the program
ELSEWHERE = ("candidate", "globals()")     # names of the program's own function, if tests reuse its name
LONGEST_INTEGER = 4000      # digits that Python converts by default


def payload_sha256(row: Mapping[str, Any]) -> str:
    """Hash of a task's question and expected answer."""
    content = json.dumps([row[name] for name in ("kind", "messages", "payload")])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def check_payload(kind: str, payload: dict[str, Any], where: str) -> None:
    """StageError naming the task and the field if a payload does not fit its kind."""
    for name in payload.keys() - JUDGES:
        if meant := difflib.get_close_matches(name.lower(), JUDGES, 1, ALIKE):
            raise StageError(f"{where}: payload field '{name}' is not known. Write '{meant[0]}', or rename "
                             "it.")
    if kind == "grid":
        for split in ("train", "test"):
            _check_pairs(payload, split, where, hidden=split == "test" and _is_hidden(payload))
    elif kind == "function":
        _check_function(payload, where)
    elif kind == "stdio":
        for index, case in enumerate(_list_of(where, payload, "cases")):
            _field(where, case, "input", str, inside=f"cases[{index}].")
            _field(where, case, "output", str, inside=f"cases[{index}].")
        _choice(where, payload, "compare", COMPARISONS)
        checker = _python(where, "checker", _field(where, payload, "checker", str, ""))
        if checker and not any(getattr(node, "name", "") == "check" for node in checker):
            raise StageError(f"{where}: payload field 'checker' defines no `check(input, output, expected)`. "
                             "Correct it.")
        _python(where, "program_setup", _field(where, payload, "program_setup", str, ""))
        _field(where, payload, "tolerance", NUMBER, 0)
    elif kind == "graded":
        names = [_field(where, payload, "grader", str), *_field(where, payload, "modules", list, [])]
        if not all(isinstance(name, str) and all(map(str.isidentifier, name.split("."))) for name in names):
            raise StageError(f"{where}: payload field 'grader' or 'modules' names no Python module. Write "
                             "the name by which it is imported.")
    elif kind in ("answer", "math"):
        answer = _field(where, payload, "answer", (str, *NUMBER, list))
        if not answer and isinstance(answer, (str, list)):
            raise StageError(f"{where}: payload field 'answer' is empty. Give at least one answer.")
        if kind == "math":
            return
        _choice(where, payload, "match", MATCHES)
        _field(where, payload, "label", (str, type(None)), None)
        _field(where, payload, "tolerance", NUMBER, 0)


def read_json(text: str | bytes) -> Any:
    """JSON with integers of any length: very long ones are tagged hex digits."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= LONGEST_INTEGER else {
        "$": "int", "v": hex(int(Decimal(digits)))})


def _is_hidden(payload: Mapping[str, Any]) -> bool:
    """Whether a grid task has no solution of any of its tests, as in a competition."""
    tests = payload.get("test")
    return isinstance(tests, list) and bool(tests) and all(
        isinstance(pair, dict) and pair.get("output") is None for pair in tests)


def _check_pairs(payload: dict[str, Any], split: str, where: str, *, hidden: bool) -> None:
    pairs = payload.get(split)
    if not isinstance(pairs, list) or not pairs:
        raise StageError(f"{where} has no list '{split}'. Correct it.")
    for index, pair in enumerate(pairs):
        for name in ("input",) if hidden else ("input", "output"):
            place = f"{split}[{index}].{name}"
            if not isinstance(pair, dict) or name not in pair:
                raise StageError(f"{where} lacks {place}. " + (
                    "Put the solutions file next to the challenges file (same name with 'solutions')."
                    if (split, name) == ("test", "output") else "Correct it."))
            if problem := grid_problem(pair[name]):
                raise StageError(f"{where}, {place} {problem}. Correct it.")


def grid_problem(grid: Any) -> str | None:
    """What is wrong with a grid, in words; None for a valid ARC grid."""
    if not isinstance(grid, list) or not grid or not all(isinstance(row, list) and row for row in grid):
        return "is not a list of rows"
    if len({len(row) for row in grid}) > 1:
        return "has rows of different lengths"
    if not all(type(cell) is int and 0 <= cell <= 9 for row in grid for cell in row):
        return "has a cell that is not a whole number from 0 to 9"
    if max(len(grid), len(grid[0])) > MAX_GRID_SIDE:
        return f"is larger than {MAX_GRID_SIDE} x {MAX_GRID_SIDE}"
    return None


def _check_function(payload: dict[str, Any], where: str) -> None:
    entry = _field(where, payload, "entry_point", str)
    if not all(map(str.isidentifier, entry.split(".", 1))):
        raise StageError(f"{where}: payload field 'entry_point' is '{entry}', which names nothing. Write the "
                         "name of a function, or Class.method.")
    _python(where, "program_setup", _field(where, payload, "program_setup", str, ""))
    if "calls" in payload:
        for index, call in enumerate(_list_of(where, payload, "calls")):
            if "expected" not in call:
                raise StageError(f"{where}: a call is not an object with 'args' and 'expected'. Correct it.")
            _field(where, call, "args", list, [], inside=f"calls[{index}].")
            _field(where, call, "kwargs", dict, {}, inside=f"calls[{index}].")
        _field(where, payload, "tolerance", NUMBER, 0)
        if payload.get("any_order"):
            raise StageError(f"{where}: payload field 'any_order' is not known. Write the comparison into "
                             "'tests': assert sorted(f(x)) == [..].")
        return
    _field(where, payload, "in_place", bool, False)
    setup = _field(where, payload, "setup", str, "")
    tests = _field(where, payload, "tests", (str, list))
    statements = [tests] if isinstance(tests, str) else tests
    if not statements or not all(isinstance(test, str) and test.strip() for test in statements):
        raise StageError(f"{where}: payload field 'tests' is not a list of statements. Correct it.")
    before, *asked = ((code, _python(where, "tests", code)) for code in (setup, *statements))
    for test, body in asked if isinstance(tests, list) else []:
        if (name := _uncalled(body)) and not any(name in other or "globals()" in other
                                                 for other in tests if other is not test):
            raise StageError(f"{where}: payload field 'tests' is a list of statements, of which one defines "
                             f"{name} and nothing calls it: every program would pass. Give the source as one "
                             "text, not in a list.")
    whole = [] if isinstance(tests, list) else [*before[1], *asked[0][1]]
    name = entry.split(".")[0]
    if "check" not in _functions(whole) and _replace(name, before, asked):
        raise StageError(f"{where}: payload field 'tests' or 'setup' defines {name} itself, so the program's "
                         "own would never be asked. Take it out, or give it another name.")
    if isinstance(tests, str) and not any(map(_is_test, whole)):
        raise StageError(f"{where}: payload field 'tests' defines no `check(candidate)`, no function test_* "
                         "and no class with methods test_*. Correct it.")


def _list_of(where: str, payload: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows: list[Any] = _field(where, payload, name, list)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise StageError(f"{where}: payload field '{name}' is empty, or holds something other than objects. "
                         f"Give at least one object in '{name}'.")
    return rows


def _choice(where: str, payload: dict[str, Any], name: str, choices: tuple[str, ...]) -> None:
    value = _field(where, payload, name, str, choices[0])
    if value not in choices:
        raise StageError(f"{where}: payload field '{name}' is '{value}'. Use one of {', '.join(choices)}.")


def _uncalled(body: list[ast.stmt]) -> str | None:
    """The name of the test that a statement defines without calling anything."""
    if any(not isinstance(node, IDLE) and not ast.unparse(node).startswith(("if __name__", '"', "'"))
           for node in body):
        return None
    return next((node.name for node in body if isinstance(node, DEFINITIONS) and any(
        name == "check" or name.startswith("test")
        for name in _functions(node.body if isinstance(node, ast.ClassDef) else [node]))), None)


def _functions(body: list[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _replace(name: str, setup: Code, tests: list[Code]) -> bool:
    """Whether a test, or their setup, redefines the function under test."""
    source, body = setup
    first = _replaces(name, body)
    return first is not False and any(
        first or _replaces(name, test) for text, test in tests
        if not any(word in source or word in text for word in ELSEWHERE))


def _replaces(name: str, body: list[ast.stmt]) -> bool | None:
    """Whether the first use of this name is a definition instead of a read; None for neither."""
    for node in body:
        is_own, parts = False, list[ast.AST]([node])
        if isinstance(node, DEFINITIONS) and node.name == name:
            header = node.bases if isinstance(node, ast.ClassDef) else [node.args]
            is_own, parts = True, [*node.decorator_list, *header]
        if any(isinstance(each, ast.Name) and each.id == name for part in parts for each in ast.walk(part)):
            return False
        if is_own:
            return True
    return None


def _is_test(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(name.startswith("test") for name in _functions(node.body))
    return isinstance(node, DEFINITIONS) and (node.name.startswith("test") or (
        node.name == "check" and isinstance(node, ast.FunctionDef)
        and not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))))


def defines_tests(source: str) -> bool:
    """True for a source with `check`, test functions or methods; False if it is not Python."""
    try:
        return any(map(_is_test, ast.parse(source).body))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _python(where: str, name: str, code: str) -> list[ast.stmt]:
    """The statements of code in a payload; StageError if it is not Python."""
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise StageError(f"{where}: payload field '{name}' is not Python: {error}. Correct it.") from error


def _field(where: str, payload: dict[str, Any], name: str, kinds: type | tuple[type, ...],
           *default: Any, inside: str = "") -> Any:
    """A field of a payload, or `inside` it; StageError naming it if it is missing or of another type."""
    value = payload.get(name, *default)
    if not isinstance(value, kinds):
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        said = f"{json.dumps(value)[:60]}, not" if name in payload else "missing: it has to be"
        raise StageError(f"{where}: payload field '{inside}{name}' is {said} "
                         f"{' or '.join(kind.__name__ for kind in wanted)}. Correct it.")
    return value
