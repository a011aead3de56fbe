"""EvalPlus (HumanEval+ and MBPP+): a column of tests, or inputs and the solution that says what is right."""

from warehouse.sources.tables import Row, value_of
from warehouse.sources.wording import asked, mbpp_entry_point
from warehouse.tasks.task_files import Task, generic_task

# Runs in the process of the tests. Inputs on which the reference fails (JSON has no tuples) say nothing.
CHECK = '''\
import copy
import math

reference_names = {{}}
exec({reference!r}, reference_names)
reference = reference_names[{entry!r}]


def is_right(given, wanted, arguments):
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
            reference=code, entry=entry, atol=row.get("atol") or 0,
            inputs=[*value_of(row, "base_input", where, list),
                    *value_of(row, "plus_input", where, (list, dict))])      # {} where there are none
        question, setup = f"Complete this Python function.\n```python\n{prompt.rstrip()}\n```", ""
        more = "Repeat the imports and the signature."
    else:                                    # mbppplus of the hub: the tests are a script
        task_id, code = f"Mbpp-{task_id}", value_of(row, "code", where, str)
        first = str(value_of(row, "test_list", where, list)[0])
        entry, tests = mbpp_entry_point(code, first, where), [value_of(row, "test", where, str)]
        question, more = f"{prompt.strip()}\nIt must pass, for example, this test:\n{first}", ""
        setup = "\n".join(row.get("test_imports") or [])
    return generic_task({"task_id": f"{task_id}-plus", "kind": "function", "solution": code,
                         "messages": asked(question, "program", more),
                         "payload": {"entry_point": entry, "setup": setup, "tests": tests}}, where)
