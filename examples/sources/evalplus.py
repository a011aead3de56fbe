"""EvalPlus (HumanEval+ and MBPP+): inputs and the solution that says what is right, or a column of tests.

    warehouse init RUN --model .. --tasks "examples/sources/evalplus.py:tasks?file=MbppPlus.jsonl.gz"

`file` is HumanEvalPlus.jsonl.gz or MbppPlus.jsonl.gz, or a Parquet file of the data sets on the hub.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.sources.benchmarks import ask, mbpp_entry_point
from warehouse.sources.tables import Row, read_rows, value_of

# Runs in the process of the tests; compares as `evalplus.eval` of the release 0.3.1 does.
CHECK = '''\
import copy
import math

inf, nan = math.inf, math.nan
reference_names = {{}}
exec({reference!r}, reference_names)
reference = reference_names[{entry!r}]


def is_floats(value):
    return isinstance(value, float) or (
        isinstance(value, (list, tuple)) and value and all(isinstance(item, float) for item in value))


def is_near(given, wanted, atol):
    if isinstance(wanted, (list, tuple)):
        return len(given) == len(wanted) and all(is_near(*pair, atol) for pair in zip(given, wanted))
    return given == wanted or (given != given and wanted != wanted) or (
        abs(given - wanted) <= atol + 1e-07 * abs(wanted))


def is_right(given, wanted, arguments, atol):
    {oracle}
    return atol > 0 and type(given) is type(wanted) and is_near(given, wanted, atol)


def check(candidate):
    atol = {atol!r}
    for arguments in {inputs!r}:
        wanted = reference(*copy.deepcopy(arguments))
        if is_floats(wanted):
            atol = atol or 1e-06
        assert is_right(candidate(*copy.deepcopy(arguments)), wanted, arguments, atol), arguments
'''
# What is right of a function: as the reference says, or what EvalPlus takes besides.
EQUAL = "if given == wanted:\n        return True"
AS_SETS = "return set(given) == set(wanted)"
NOT_NONE = "return (given if isinstance(given, bool) else given is not None) == (wanted is not None)"
OR_ELSE = "if given in (wanted, {}):\n        return True"
ORACLES = {
    "find_zero": "return abs(sum(each * given ** power for power, each in enumerate(arguments[0]))) <= atol",
    "are_equivalent": "return True", "sum_div": OR_ELSE.format("0"),
    "surface_Area": OR_ELSE.format("(lambda side, height: round(side ** 2 + 2 * side * math.hypot(side / 2, "
                                   "height)))(*arguments)"),
    "digit_distance_nums": OR_ELSE.format(
        "sum(abs(int(one) - int(other)) for one, other in zip(*(str(each).zfill(max(len(str(each)) "
        "for each in arguments)) for each in arguments)))"),
    **dict.fromkeys(("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly",
                     "larg_nnum", "intersection_array", "find_dissimilar", "Diff"), AS_SETS),
    **dict.fromkeys(("check_str", "text_match_three", "text_starta_endb"), NOT_NONE)}
# JSON has no tuples: which lists of an MBPP+ task's arguments are some, by how deep they lie.
ITSELF, ITEMS, BOTH, ALL = {1}, {2}, {1, 2}, set(range(1, 100))
TUPLES = {number: depths for depths, numbers in (
    (ITSELF, (2, 106, 116, 132, 143, 222, 250, 261, 273, 307, 394, 399, 405, 421, 424, 429, 446, 470, 560,
              579, 596, 616, 617, 630, 720, 726, 740, 744, 750, 763, 808, 809)),
    (ITEMS, (63, 64, 70, 75, 94, 120, 237, 272, 299, 400, 409, 413, 417, 438, 444, 473, 614, 722, 753, 780)),
    (BOTH, (259, 278, 401, 445)), (ALL, (580, 615, 791))) for number in numbers}
ALONE = {106: 1, 250: 0, 405: 0, 446: 0, 750: 1, 808: 0}      # the one argument that is meant


def tasks(file: str) -> Iterator[Row]:
    """The tasks of a file as objects with task_id, kind, messages, payload and solution."""
    for where, row in read_rows(Path(file)):
        yield task_of(row, where)


def task_of(row: Row, where: str) -> Row:
    """One row as a task."""
    task_id = str(value_of(row, "task_id", where, (str, int))).replace("/", "-")
    prompt = value_of(row, "prompt", where, str)
    if "entry_point" in row:
        entry, code = str(row["entry_point"]), prompt + value_of(row, "canonical_solution", where, str)
        tests: str | list[str] = check_of(row, task_id, entry, code, where) if "plus_input" in row else (
            value_of(row, "test", where, str))
        question, setup = f"Complete this Python function.\n```python\n{prompt.rstrip()}\n```", ""
        more = "Repeat the imports and the signature."
    else:                                    # mbppplus of the hub: the tests are a script
        task_id, code = f"Mbpp-{task_id}", value_of(row, "code", where, str)
        first = str(value_of(row, "test_list", where, list)[0])
        entry, tests = mbpp_entry_point(code, first, where), [value_of(row, "test", where, str)]
        question, more = f"{prompt.strip()}\nIt must pass, for example, this test:\n{first}", ""
        setup = "\n".join(row.get("test_imports") or [])
    return {"task_id": f"{task_id}-plus", "kind": "function", "solution": code,
            "messages": ask(question, "program", more),
            "payload": {"entry_point": entry, "setup": setup, "tests": tests}}


def check_of(row: Row, task_id: str, entry: str, code: str, where: str) -> str:
    """Tests that hold a program against the canonical solution on every input of a row."""
    inputs = [*value_of(row, "base_input", where, list),
              *value_of(row, "plus_input", where, (list, dict))]         # {} where there are none
    if task_id.startswith("Mbpp-"):
        inputs = [restore_types(int(task_id.removeprefix("Mbpp-")), arguments) for arguments in inputs]
    oracle = ORACLES.get(entry, EQUAL)
    return CHECK.format(reference=code, entry=entry, atol=row.get("atol") or 0, oracle=oracle, inputs=inputs)


def restore_types(number: int, arguments: list[Any]) -> list[Any]:
    """The arguments of an MBPP+ task with the types that JSON has no words for."""
    if number == 115:
        return [[set(item) if isinstance(item, list) and item else {} for item in arguments[0]]]
    if number == 124:
        return [float(arguments[0]), complex(arguments[1])]
    if number == 252:
        return [complex(arguments[0])]
    depths = TUPLES.get(number, set())
    return [with_tuples(argument, depths, 1) if ALONE.get(number, place) == place else argument
            for place, argument in enumerate(arguments)]


def with_tuples(value: Any, depths: set[int], depth: int) -> Any:
    """A value of JSON whose lists at these depths are tuples."""
    if isinstance(value, dict):
        return {key: with_tuples(item, depths, depth + 1) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [with_tuples(item, depths, depth + 1) for item in value]
    return tuple(items) if depth in depths else items
