"""Tasks whose grader needs a library: it runs in a lane, on the text of the answer, as programs do."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.tasks.measures import Answer, Measures, digest, texts_of, unit_measures
from score.wire import plain_data
from score.wire.error_classes import ErrorClass
from score.wire.frames import JobKind
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
    order = {"entry_point": "grade", "setup": "", "calls": [plain_data.tag([arguments, {}])]}
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
