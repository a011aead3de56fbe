"""Prompt formats: named and versioned ways to turn a task into chat messages.

A format is never edited once rows were sampled with it: a changed wording gets the next version.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollout.prompts.compact_format import choose_pairs, render_pairs
from rollout.prompts.encoders import describe_cells, grid_encoder
from warehouse.store.errors import StageError

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Shown:
    """What a grid prompt may show: train pairs in the order drawn, and one test input; augmented already."""

    pairs: list[dict[str, Any]]
    test_input: list[list[int]]


@dataclass(frozen=True)
class Format:
    """`render(shown, options)` gives the messages; `choose(pairs, options)` the indices of pairs to show."""

    name: str
    options: dict[str, str]
    choose: Callable[[list[dict[str, Any]], dict[str, str]], list[int]]
    render: Callable[[Shown, dict[str, str]], Messages]
    shows_test: bool

    def with_options(self, given: dict[str, str]) -> dict[str, str]:
        """The format's options with those given; StageError for one it does not have."""
        unknown = sorted(given.keys() - self.options.keys())
        if unknown:
            raise StageError(f"Prompt format {self.name} has no option '{unknown[0]}'. "
                             f"Known: {', '.join(self.options) or 'none'}.")
        return {**self.options, **given}


def all_pairs(pairs: list[dict[str, Any]], _options: dict[str, str]) -> list[int]:
    """Every pair is shown."""
    return list(range(len(pairs)))


def _compact_pairs(pairs: list[dict[str, Any]], options: dict[str, str]) -> list[int]:
    return choose_pairs(pairs, max_pairs=_count(options, "max_pairs"),
                        max_characters=_count(options, "max_characters"))


def _count(options: dict[str, str], name: str) -> int:
    if not options[name].isdigit() or int(options[name]) < 1:
        raise StageError(f"--format-option {name}={options[name]} is not a whole number from 1 on. "
                         "Correct it.")
    return int(options[name])


def _compact(shown: Shown, _options: dict[str, str]) -> Messages:
    return [{"role": "user", "content": render_pairs(shown.pairs)}]


def _chat(shown: Shown, options: dict[str, str]) -> Messages:
    encode = grid_encoder(options["encoder"])
    blocks = [f"Example {number}\nInput:\n{encode(pair['input'])}\n\nOutput:\n{encode(pair['output'])}\n"
              for number, pair in enumerate(shown.pairs, start=1)]
    test = ["Test input:", encode(shown.test_input), ""]
    intro = options["intro"].replace("{cells}", describe_cells(options["encoder"]))
    user = {"role": "user", "content": "\n".join([intro, *blocks, *test, options["request"]])}
    return [{"role": "system", "content": options["system"]}, user] if options["system"] else [user]


CHAT_OPTIONS = {
    "encoder": "names",
    "system": "You solve grid puzzles by writing Python programs.",
    "intro": "A hidden rule turns each input grid into its output grid, the same in every example. {cells}\n",
    "request": "Write a Python function `transform(grid)` that takes a 2-D numpy array of colour numbers "
               "0-9, applies the rule and returns the output grid. Answer with one ```python code block.",
    "prefill": "",
}
FORMATS = {format.name: format for format in (
    Format("compact@1", {"max_pairs": "3", "max_characters": "700"}, _compact_pairs, _compact, False),
    Format("chat@1", CHAT_OPTIONS, all_pairs, _chat, True),
)}
OWN_MESSAGES = "messages@1"  # tasks that bring their own messages are sent as they are


def own_messages(task_messages: str) -> tuple[Messages, str]:
    """Messages of a task that brings its own, and the prefill: a last assistant turn is continued."""
    messages = json.loads(task_messages)
    if messages[-1]["role"] == "assistant":
        return messages[:-1], messages[-1]["content"]
    return messages, ""
