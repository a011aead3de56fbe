"""Tasks whose grader is a Python module: it runs in a lane, on the text of the answer, as programs do."""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, ClassVar

from score.protocol import plain_data
from score.protocol.error_classes import ErrorClass
from score.protocol.frames import JobKind
from score.sandbox.program import Outcome, Program
from score.tasks.measures import Answer, Measures, digest, unit_measures
from warehouse.store.errors import StageError
from warehouse.tasks.answers import behind_thoughts, boxed

LONGEST_TEXT = 4000         # characters at the end of an answer, and of what is shown of it
GRADER = """from {module} import grade as own

def grade(text, payload):
    try:
        given = own(text, payload)
        shown = {{"shown": str(given.get("shown", ""))[:{longest}]}} if isinstance(given, dict) else None
        return {{**given, **shown}} if shown else given
    except MemoryError:
        raise
    except RecursionError:
        return 0
    except Exception as error:
        place = error.__traceback__
        while place.tb_next:
            place = place.tb_next
        where = f"{{place.tb_frame.f_code.co_filename}}, line {{place.tb_lineno}}"
        return {{"failure": f"{{type(error).__name__}}: {{error}} ({{where}})"[:500]}}
"""
IN_GRADER = "in the grader"         # how the message of a grader's failure begins
# Failures that an answer can bring about by its length or depth: it is wrong.
OF_THE_ANSWER = (ErrorClass.TIMEOUT_CPU, ErrorClass.TIMEOUT_WALL, ErrorClass.MEMORY, ErrorClass.RECURSION,
                 ErrorClass.OUTPUT_LIMIT, ErrorClass.CRASHED, ErrorClass.NO_RESULT)


@dataclass(frozen=True)
class GradedKind:
    """`grade(text, payload)` of a module, which lanes load at their start: the kind's, or the task's own.

    It gives a share from 0 to 1, or an object of `share`, `shown` (the answer as it was read), `rewards` and
    `metrics`. Where it raises an error an answer is wrong, but a task's own grader is then at fault, unless
    the answer is nested too deep for it or made it exceed a limit.
    """

    module: str | None = None
    text_of: Callable[[str], str] = str           # of the answer: what `grade` gets to see

    def load(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    def programs(self, task: dict[str, Any], answer: Answer) -> list[Program] | Outcome:
        text = self.text_of(answer.text)
        if self.module and not text.strip():
            return Outcome(error_class=ErrorClass.PARSING, error_message="no answer")
        order = {"entry_point": "grade", "setup": "", "calls": [[[text, task], {}]]}
        source = GRADER.format(module=self.module or task["grader"], longest=LONGEST_TEXT)
        return [Program(JobKind.CALL, source, json.dumps(order).encode(),
                        then=None if self.module else OwnGrader(task["grader"]))]

    def measure(self, task: dict[str, Any], answer: Answer, outcomes: list[Outcome]) -> Measures:
        if outcomes[0].error_class is not None:
            return unit_measures(answer, outcomes[0], [], 1)
        given = given_by(outcomes[0])
        shown = str(given.get("shown", ""))
        measures = unit_measures(answer, outcomes[0], [given.get("share", 0.0)], 1, outputs=[shown],
                                 fingerprint=digest(shown))
        return replace(measures, rewards=given.get("rewards"), metrics=given.get("metrics", {}))


def given_by(outcome: Outcome) -> dict[str, Any]:
    """What a grader gives, all numbers finite; `failure` says why it gives nothing."""
    given: Any = outcome.result
    try:
        [[_, value]] = given
        given = plain_data.untag(value)
        given = given if isinstance(given, dict) else {"share": given}
        if "failure" in given:
            return {"failure": str(given["failure"])}
        rewards = given.get("rewards") or {}
        if 0 <= given["share"] <= 1 and all(map(math.isfinite, [
                sum(rewards.values()), *rewards.values(), *given.get("metrics", {}).values()])):
            return given
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass
    return {"failure": f"it gave {given!r}"[:400] + "; the share must be from 0 to 1, all numbers finite"}


@dataclass(frozen=True)
class OwnGrader:
    """Makes a failure of a task's own grader `untestable`, unless the answer brought it about."""

    grader: str
    key: ClassVar[bytes] = b"own grader"

    def program(self, outcome: Outcome) -> None:
        return None

    def settle(self, outcome: Outcome, later: Outcome | None) -> Outcome:
        words = outcome.error_message if outcome.error_class else given_by(outcome).get("failure")
        own = outcome.error_class if outcome.error_class in OF_THE_ANSWER else ErrorClass.UNTESTABLE
        return outcome if outcome.infrastructure or words is None else replace(
            outcome, result=None, error_class=own, error_message=f"{IN_GRADER} {self.grader}: {words}")


def boxed_or_end(text: str) -> str:
    r"""The last \boxed{} behind the thoughts of a text, in its box; the end of a text without one."""
    said = behind_thoughts(text)
    inside = boxed(said).rstrip(".")
    return rf"\boxed{{{inside}}}" if inside else said[-LONGEST_TEXT:]


MATH = GradedKind("score.graders.symbolic", boxed_or_end)


def source_hash(module: str, import_paths: Sequence[str]) -> str:
    """Hash of the Python files of a module or package, which is not imported for it."""
    spec = PathFinder.find_spec(module, [*sys.path, *import_paths])
    if spec is None or spec.origin is None:
        raise StageError(f"The module {module}, which grades tasks, is not here. Install its package, or "
                         "name its folder: --import-path DIR.")
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    try:
        compile(origin.read_bytes() if origin.suffix == ".py" else b"", str(origin), "exec")
    except (SyntaxError, ValueError) as error:
        where = f"{origin}, line {getattr(error, 'lineno', None) or 1}"
        raise StageError(f"The grader {module} is not Python: {where}: {getattr(error, 'msg', error)}. "
                         "Correct it.") from error
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(origin.parent)}\0".encode() + file.read_bytes() + b"\0")
    return content.hexdigest()[:16]
