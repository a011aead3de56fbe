"""Programs that solve no task. Tests that one of them passes are too weak, in plain Python as well."""

import json
from collections.abc import Callable, Sequence
from textwrap import indent

from score.inspect.units import unit_lines
from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.program import Outcome
from score.tasks.kinds import Task
from score.tasks.measures import Answer

EQUAL = "class Equal:\n    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *_: True\n" \
        "    __ne__ = lambda *_: False\n    __hash__ = lambda _: 0\n"
# Bodies of a function with arguments `a`, by description.
BODIES = {**{f"returns {value}": f"return {value}" for value in (
              "None", "True", "False", "0", "''", "[]", "float('nan')")},
          "returns an array of nothing": "import numpy\nreturn numpy.zeros((0, 1))",
          "returns what equals everything": "return Equal()",
          "returns its argument": "return a[0]",
          "empties its argument": "a[0].clear()\nreturn a[0]",
          "returns a function that does nothing": "return lambda *b, **c: None",
          "exits with 0": "raise SystemExit(0)"}
SCRIPTS = {"prints nothing": "pass", "prints its input": "import sys\nsys.stdout.write(sys.stdin.read())",
           **{f"prints {word}": f"print('{word}')" for word in (
               "YES", "NO", "Yes", "No", "0", "1", "-1", "nan", "inf")}}


def cheats_for(kind: str, entry_point: str) -> dict[str, str]:
    """Cheats for a kind of task, by what they do; none for the others."""
    functions = {name: f"{EQUAL}{function(entry_point, body)}" for name, body in BODIES.items()}
    return {"function": functions, "stdio": SCRIPTS, "graded": {"says nothing": ""}}.get(kind, {})


def function(entry_point: str, body: str) -> str:
    """A function, or a class with this method."""
    owner, _, name = entry_point.rpartition(".")
    code = f"def {name}({'self, ' if owner else ''}*a, **k):\n{indent(body, '    ')}\n"
    return f"class {owner}:\n{indent(code, '    ')}" if owner else code


def paid_cheats(executor: Executor, tasks: Sequence[Task],
                finished: Callable[[Outcome], None]) -> tuple[dict[str, str], dict[str, tuple[float, str]]]:
    """Per task, the cheats that pass all its tests, and these; or the best share of one of them."""
    items, names = [], []
    for task in tasks:
        for name, code in cheats_for(task.kind_name, task.payload.get("entry_point", "")).items():
            items.append(Item(task, Answer("", code)))
            names.append(name)
    paid: dict[str, list[str]] = {}
    parts: dict[str, tuple[float, str]] = {}
    tests: dict[str, str] = {}
    rows = measure(items, run_programs(executor, items, finished))
    for item, name, row in zip(items, names, rows, strict=True):
        if row.measures.correct:
            task, outputs = item.task, json.loads(row.measures.outputs or "{}").get("test")
            paid.setdefault(task.task_id, []).append(name)
            first = next(iter(unit_lines(task.kind_name, task.payload, outputs)))
            more = f" (and {len(outputs) - 1} more)" if outputs and outputs[1:] else ""
            tests[task.task_id] = " ".join(first.replace(": right ", " passes: ", 1).split()) + more
        elif row.measures.correct_share > parts.get(item.task.task_id, (0.0,))[0]:
            parts[item.task.task_id] = row.measures.correct_share, name
    return {name: f"{', '.join(paid[name])}; {test}" for name, test in tests.items()}, {
        name: parts[name] for name in parts.keys() - tests.keys()}
