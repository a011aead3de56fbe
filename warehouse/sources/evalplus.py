"""EvalPlus (HumanEval+ and MBPP+): a column of tests, or inputs and the solution that says what is right."""

import ast
from typing import Any

from warehouse.sources.tables import Row, value_of
from warehouse.sources.wording import ask, mbpp_entry_point
from warehouse.tasks.task_files import Task, generic_task

# Runs in the process of the tests. Inputs on which the reference fails (JSON has no tuples) say nothing.
CHECK = '''\
import copy
import math

inf, nan = math.inf, math.nan
reference_names = {{}}
exec({reference!r}, reference_names)
reference = reference_names[{entry!r}]


def is_right(given, wanted, arguments):
    if {view!r}:                            # all that the examples of the row ask for
        return {view}(given) == {view}(wanted)
    if {entry!r} == "find_zero":
        return abs(reference_names["poly"](*arguments, given)) <= 1e-4
    if isinstance(wanted, (list, tuple)):
        return isinstance(given, (list, tuple)) and len(given) == len(wanted) and all(
            is_right(ours, theirs, ()) for ours, theirs in zip(given, wanted))
    if isinstance(wanted, float) and isinstance(given, (int, float)):
        return given == wanted or (given != given and wanted != wanted) or math.isclose(
            given, wanted, rel_tol=1e-07, abs_tol={atol!r} or 1e-6)
    return given == wanted


def check(candidate):
    compared = 0
    for arguments in {inputs!r}:
        try:
            wanted = reference(*copy.deepcopy(arguments))
        except Exception:
            continue
        compared += 1
        assert is_right(candidate(*copy.deepcopy(arguments)), wanted, arguments), arguments
    assert compared
'''


def evalplus_task(row: Row, _number: int, where: str) -> Task:
    """A row of HumanEvalPlus.jsonl or MbppPlus.jsonl, or of their data sets on the hub."""
    task_id = str(value_of(row, "task_id", where, (str, int))).replace("/", "-")
    prompt = value_of(row, "prompt", where, str)
    if "entry_point" in row:
        entry, code = str(row["entry_point"]), prompt + value_of(row, "canonical_solution", where, str)
        tests: str | list[str] = row.get("test") or CHECK.format(
            reference=code, entry=entry, atol=row.get("atol") or 0, view=view_of(row, entry),
            inputs=[like(example_of(row, entry), inputs) for inputs in (
                *value_of(row, "base_input", where, list),
                *value_of(row, "plus_input", where, (list, dict)))])         # {} where there are none
        question, setup = f"Complete this Python function.\n```python\n{prompt.rstrip()}\n```", ""
        more = "Repeat the imports and the signature."
    else:                                    # mbppplus of the hub: the tests are a script
        task_id, code = f"Mbpp-{task_id}", value_of(row, "code", where, str)
        first = str(value_of(row, "test_list", where, list)[0])
        entry, tests = mbpp_entry_point(code, first, where), [value_of(row, "test", where, str)]
        question, more = f"{prompt.strip()}\nIt must pass, for example, this test:\n{first}", ""
        setup = "\n".join(row.get("test_imports") or [])
    return generic_task({"task_id": f"{task_id}-plus", "kind": "function", "solution": code,
                         "messages": ask(question, "program", more),
                         "payload": {"entry_point": entry, "setup": setup, "tests": tests}}, where)


def asserts_of(row: Row) -> list[ast.expr]:
    """What the examples of an MBPP+ row assert, in Python; nothing for rows of HumanEval+."""
    try:
        tree = ast.parse(str(row.get("assertion") or ""))
    except SyntaxError:
        return []
    return [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def is_call(node: ast.AST, name: str) -> bool:
    """True of `name(..)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def view_of(row: Row, entry: str) -> str:
    """`bool` where the examples ask for truth alone, `set` where for the items in any order, else ''."""
    asserts = asserts_of(row)
    plain = [each.operand if isinstance(each, ast.UnaryOp) else each for each in asserts]
    if plain and all(is_call(each, entry) for each in plain):
        return "bool"
    as_sets = [isinstance(each, ast.Compare) and is_call(each.left, "set") for each in asserts]
    return "set" if as_sets and all(as_sets) else ""


def example_of(row: Row, entry: str) -> Any:
    """The arguments of the first example, with the types that JSON has no words for; None where unknown."""
    calls = [node for each in asserts_of(row) for node in ast.walk(each) if is_call(node, entry)]
    try:
        return [ast.literal_eval(argument) for argument in calls[0].args] if calls else None  # type: ignore
    except ValueError:
        return None


def like(example: Any, value: Any) -> Any:
    """A value of JSON with tuples, sets and complex numbers where the example has them."""
    if isinstance(value, list) and isinstance(example, (list, tuple, set)):
        models = list(example) if len(example) == len(value) else [next(iter(example), None)] * len(value)
        items = [like(*pair) for pair in zip(models, value, strict=True)]
        try:
            return type(example)(items)
        except TypeError:               # a list in a set
            return items
    try:
        return complex(value) if isinstance(value, str) and isinstance(example, (int, complex)) else value
    except ValueError:
        return value
