"""Feedback: what the next turn says about a completion, made from the completion's own score.

Never edit a feedback format once rows were sampled with it: new wording needs a new version.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rollout.prompts.formats import grid_encoder
from warehouse.stages.user_code import UserFunction, load_function
from warehouse.store.errors import StageError
from warehouse.tasks.augmentation import augment

Row = dict[str, Any]
Shown = list[dict[str, Any]]  # visible to the model: train pairs as prompted, or failed tests
LINE = re.compile(r"line (\d+): ")  # before the message of an error
REQUEST = "Write the whole program again, corrected."


class Feedback(NamedTuple):
    """A named and versioned feedback text, made from columns of a sample, its prompt and its task."""

    name: str
    say: Callable[[Row, Shown], str]


def find_feedback(name: str) -> Feedback:
    """The format of this name, with or without its version, or `def NAME(sample, shown)` in FILE.py:NAME."""
    if ".py:" in name:
        user = load_function(name, "--feedback")
        return Feedback(f"{user.name}@{user.content_hash}", partial(_users, user))
    for known in FORMATS:
        if name in (known.name, known.name.partition("@")[0]):
            return known
    raise StageError(f"Unknown feedback '{name}'. Known: {', '.join(known.name for known in FORMATS)}, or "
                     "FILE.py:NAME.")


def _users(user: UserFunction, sample: Row, shown: Shown) -> str:
    where = f"The feedback {user.name} in {user.path}"
    text = user.call(where, "Nothing was sampled; correct it.", sample, shown)
    if not isinstance(text, str) or not text.strip():
        raise StageError(f"{where} returned {str(text)[:60]!r}, which is not text.")
    return text


def shown_of(parent: Row) -> Shown:
    """What may be shown of how a completion did; for grids never a test pair.

    For 'grid': the train pairs that the prompt showed, as it showed them, or all if it does not record them:
    {input, expected, output}, output None if the program gave none; without pairs that a replaced task no
    longer has. For others: the failed tests {test, error}, in their order.
    """
    payload, outputs = json.loads(parent["payload"]), json.loads(parent["outputs"] or "{}")
    if parent["kind"] == "grid":
        made = outputs.get("train")
        held = len(payload["train"]) if made is None else min(len(payload["train"]), len(made))
        return [{"input": _as_shown(payload["train"][place]["input"], parent),
                 "expected": _as_shown(payload["train"][place]["output"], parent),
                 "output": None if made is None else _as_shown(made[place], parent)}
                for place in parent["pair_order"] or range(held) if place < held]
    results = outputs.get("test") or []
    if "cases" in payload and "checker" not in payload:
        return [{"test": f"Input:\n{case['input']}\nExpected output:\n{case['output']}",
                 "error": f"It wrote:\n{text}"}
                for case, text in zip(payload["cases"], results, strict=False)
                if (text or "").split() != case["output"].split()]
    if "calls" in payload:
        return [shown for call, result in zip(payload["calls"], results, strict=False)
                if (shown := _failed_call(payload["entry_point"], call, result))]
    tests = payload.get("tests")
    return [{"test": tests[number] if isinstance(tests, list) and number < len(tests) else "",
             "error": ": ".join(filter(None, map(str, result[1:3])))}
            for number, result in enumerate(results) if isinstance(result, list) and not result[0]]


def _as_shown(grid: list[list[int]], parent: Row) -> list[list[int]]:
    return augment(np.array(grid), parent["flip"], parent["rotations"], parent["color_map"]).tolist()


def _failed_call(entry_point: str, call: Row, result: Any) -> dict[str, str] | None:
    """A call that raised, or returned something unexpected; None if it is not clear."""
    arguments = [repr(each) for each in call.get("args", [])]
    arguments += [f"{name}={value!r}" for name, value in call.get("kwargs", {}).items()]
    test = f"{entry_point}({', '.join(arguments)}) == {call['expected']!r}"
    kind, value = (*result, None, None)[:2] if isinstance(result, list) else (None, None)
    wrong = kind == "value" and _plain(value) and value != call["expected"]
    said = str(value) if kind == "error" else f"it gave {value!r}" if wrong else None
    return None if said is None else {"test": test, "error": said}


def _plain(value: Any) -> bool:
    """True for a value that is stored unchanged: tuples, sets and special numbers are tagged."""
    return not isinstance(value, dict) and (not isinstance(value, list) or all(map(_plain, value)))


def _tests(sample: Row, shown: Shown) -> str:
    """The error, or the train pairs with output and expected output, or the first failing test."""
    if sample["error_class"] or not shown:
        return _error(sample, shown)
    if "output" not in shown[0]:
        return f"Your program fails this test:\n{shown[0]['test']}\n{shown[0]['error']}\n{REQUEST}"
    encode = grid_encoder(json.loads(sample["format_options"] or "{}").get("encoder", "digits"))
    wrong = [(number, pair) for number, pair in enumerate(shown, start=1)
             if pair["output"] != pair["expected"]]
    lines = [f"Your program is wrong on {len(wrong)} of {len(shown)} examples."] if wrong else [
        "Your program is right on every example shown, but not in general."]
    for number, pair in wrong:
        lines += [f"Example {number}, expected:", encode(pair["expected"]), "Your output:",
                  encode(pair["output"])]
    return "\n".join([*lines, REQUEST])


def _error(sample: Row, _shown: Shown) -> str:
    """Only the error: no test and no expected output."""
    if sample["truncated"]:
        return f"Your answer was cut off at the limit of {sample['num_completion_tokens']} tokens. {REQUEST}"
    if not sample["error_class"]:
        return f"Your answer is not right. {REQUEST if sample['code'] else 'Try again.'}"
    name = sample["error_name"] or sample["error_class"].replace("_", " ")
    message, lines, place = sample["error_message"] or "", (sample["code"] or "").splitlines(), ""
    if (line := LINE.match(message)) and int(line[1]) <= len(lines):
        message, place = message[line.end():], f" in line {line[1]}, `{lines[int(line[1]) - 1].strip()}`"
    return f"Your program failed with {name}{place}{f': {message}' if message else ''}. {REQUEST}"


FORMATS = (Feedback("tests@1", _tests), Feedback("error@1", _error))
