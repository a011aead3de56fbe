"""The graders of reasoning-gym: what the library says an answer to one of its questions is worth."""

import contextlib
import re
from functools import cache
from typing import Any

from gym_generators import GENERATORS
from reasoning_gym import create_dataset


@cache
def dataset_of(name: str) -> Any:
    """The generator whose questions these are; it grades without drawing any."""
    return create_dataset(name, size=1, seed=0)


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The library's score of the last <answer> of a text, from 0 to 1; an error of the library's is 0."""
    if payload["dataset"] not in GENERATORS:
        return {"failure": f"{payload['dataset']} is not among {', '.join(GENERATORS)}"}
    given, share = answer_in(text), 0.0
    with contextlib.suppress(Exception):
        share = float(dataset_of(payload["dataset"]).score_answer(answer=given, entry=payload["entry"]))
    return {"share": min(max(share, 0.0), 1.0), "shown": given[:1000]}


def answer_in(text: str) -> str:
    r"""What stands in the last <answer> of a text, else in its last \boxed{}, else the end of the text."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, tagged = before.rpartition("<answer>")
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return tagged.strip() if closed and opened else boxes[-1] if boxes else text[-4000:].strip()


for each in GENERATORS:                     # some read files of the library, which a locked process could not
    dataset_of(each)
