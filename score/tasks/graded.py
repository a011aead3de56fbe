"""Tasks whose grader needs a library: it runs in a lane, on the text of the answer, as programs do.

Tasks of a taskset for verifiers (PrimeIntellect) bring their own: rewards that are asked in a lane, too.
"""

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
from score.tasks.measures import Answer, Measures, digest, texts_of, unit_measures
from warehouse.store.errors import StageError
from warehouse.tasks.answers import boxed

LONGEST_TEXT = 4000         # the end of an answer: what a grader needs to see, and bounds on what it costs


@dataclass(frozen=True)
class GradedKind:
    """`grade(text, *arguments) -> (share, what was read)` of `module`, which lanes load at their start."""

    module: str
    arguments: Callable[[dict[str, Any]], list[Any]]      # of the payload: what `grade` gets behind the text
    text_of: Callable[[str], str]                         # of the answer: what `grade` gets to see

    def load(self, payload: dict[str, Any]) -> list[Any]:
        return self.arguments(payload)

    def programs(self, task: list[Any], answer: Answer) -> list[Program] | Outcome:
        text = self.text_of(answer.text)
        if not text.strip():
            return Outcome(error_class=ErrorClass.PARSING, error_message="no answer")
        return [grading(self.module, [text, *task])]

    def measure(self, task: list[Any], answer: Answer, outcomes: list[Outcome]) -> Measures:
        share, given = share_of(outcomes[0].result)
        return unit_measures(answer, outcomes[0], [share], 1, outputs=[given], fingerprint=digest(given))


def grading(module: str, arguments: list[Any], **program: Any) -> Program:
    """The call of a module's `grade`, as a program."""
    order = {"entry_point": "grade", "setup": "", "calls": [[arguments, {}]]}
    return Program(JobKind.CALL, f"from {module} import grade\n", json.dumps(order).encode(), **program)


def share_of(result: Any) -> tuple[float, str]:
    """What a grader's process says: a share from 0 to 1 and a text; 0 where the library raised an error."""
    try:
        [[kind, answer]] = result
        share, given = plain_data.untag(answer) if kind == "value" else (0.0, "")
        return (float(share) if 0 <= share <= 1 else 0.0), str(given)
    except (ValueError, TypeError, KeyError):
        return 0.0, ""


def boxed_or_end(text: str) -> str:
    r"""The last \boxed{} of a text, in its box; the end of a text without one."""
    inside = boxed(text)
    return rf"\boxed{{{inside}}}" if inside else text[-LONGEST_TEXT:]


def tagged_or_end(text: str) -> str:
    r"""What stands in the last <answer> of a text, else in its last \boxed{}, else the end of the text."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, tagged = before.rpartition("<answer>")
    return tagged.strip() if closed and opened else boxed(text) or text[-LONGEST_TEXT:].strip()


MATH = GradedKind("score.graders.symbolic", lambda payload: [texts_of(payload["answer"])], boxed_or_end)
GYM = GradedKind("score.graders.gym", lambda payload: [payload["dataset"], payload["entry"]], tagged_or_end)


class OwnRewards:
    """What becomes of the outcome of a grader that gives rewards of its own: one that fails gives none."""

    key: ClassVar[bytes] = b"own rewards"

    def programs(self, program: Program, outcome: Outcome) -> list[Program]:
        return []

    def settle(self, outcome: Outcome, later: list[tuple[Program, Outcome]]) -> Outcome:
        words = outcome.error_message
        if outcome.error_class is None:
            share, words, _metrics = answer_of(outcome)
            if share is not None:
                return outcome
        return outcome if outcome.infrastructure else replace(
            outcome, result=None, error_class=ErrorClass.UNTESTABLE,
            error_message=f"in the task's own rewards: {words}")


def answer_of(outcome: Outcome) -> tuple[Any, Any, Any]:
    """The share, the rewards and the metrics that a grader gives; None, what went wrong and None."""
    try:
        [[_, given]] = outcome.result
        share, rewards, metrics = plain_data.untag(given)
        numbers = [] if share is None else [share, sum(rewards.values()), *rewards.values(),
                                            *metrics.values()]
        if all(map(math.isfinite, numbers)):
            return share, rewards, metrics
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass
    return None, f"no finite numbers: {outcome.result}"[:500], None


@dataclass(frozen=True)
class TasksetKind:
    """{taskset, config, data}: the rewards of a taskset for verifiers, each with its weight, and its metrics.

    A reward that raises an error is the task's failure and not the answer's, as in verifiers itself.
    """

    module: str = "score.graders.taskset"

    def load(self, payload: dict[str, Any]) -> list[Any]:
        return [payload["taskset"], payload["config"], payload["data"]]

    def programs(self, task: list[Any], answer: Answer) -> list[Program] | Outcome:
        return [grading(self.module, [answer.text, *task], then=OwnRewards(), mentions="asyncio")]

    def measure(self, task: list[Any], answer: Answer, outcomes: list[Outcome]) -> Measures:
        if outcomes[0].error_class is not None:
            return unit_measures(answer, outcomes[0], [], 1)
        share, rewards, metrics = answer_of(outcomes[0])
        shown = tagged_or_end(answer.text)[:1000]
        measures = unit_measures(answer, outcomes[0], [share], 1, outputs=[shown], fingerprint=digest(shown))
        return replace(measures, rewards=rewards, metrics=metrics)


def source_hash(module: str, import_paths: Sequence[str]) -> str:
    """Hash of the Python files of a module or package, which is not imported for it."""
    spec = PathFinder.find_spec(module, [*sys.path, *import_paths])
    if spec is None or spec.origin is None:
        raise StageError(f"The taskset {module} is not installed here, and its rewards are its own code. "
                         "Install its package, or name its folder: --import-path DIR.")
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(origin.parent)}\0".encode() + file.read_bytes() + b"\0")
    return content.hexdigest()[:16]
