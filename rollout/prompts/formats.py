"""Prompt formats: named and versioned ways to turn a task into chat messages.

Never edit a format once rows were sampled with it: new wording needs a new version.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from warehouse.stages.user_code import UserFunction, load_function
from warehouse.store.errors import StageError
from warehouse.tasks.task_files import is_turn

Grid = list[list[int]]
Messages = list[dict[str, str]]
MIN_PAIRS = 2       # of compact@1
COLOR_NAMES = ("Black", "Blue", "Red", "Green", "Yellow", "Gray", "Pink", "Orange", "Purple", "Brown")
CELLS: dict[str, Callable[[list[int]], str]] = {
    "digits": lambda row: "".join(map(str, row)),
    "names": lambda row: " ".join(COLOR_NAMES[cell] for cell in row),
}
EXPLAINED = {
    "digits": "Each row is a line of colour numbers, without anything between them.",
    "names": "Each cell is the name of a colour, whose number is: "
             f"{', '.join(f'{number} {color}' for number, color in enumerate(COLOR_NAMES))}.",
}


def grid_encoder(name: str) -> Callable[[Grid], str]:
    """How a grid becomes text, a line per row; StageError for an unknown name."""
    if name not in CELLS:
        raise StageError(f"Unknown grid encoder '{name}'. Use one of {', '.join(CELLS)}, or a function of "
                         "your own: --prompt-format FILE.py:NAME.")
    return lambda grid: "\n".join(map(CELLS[name], grid))


@dataclass(frozen=True)
class Format:
    """`choose(pairs)` gives the indices of the pairs to show, `render(pairs, test_input, options)` messages.

    Grids are augmented already, pairs in the drawn order.
    """

    name: str
    options: dict[str, str]
    choose: Callable[[list[dict[str, Any]]], Sequence[int]]
    render: Callable[[list[dict[str, Any]], Grid, dict[str, str]], Messages]
    shows_test: bool


def _all_pairs(pairs: list[dict[str, Any]]) -> Sequence[int]:
    return range(len(pairs))


def choose_pairs(pairs: Sequence[dict[str, Any]], *, max_pairs: int = 3,
                 max_characters: int = 700) -> list[int]:
    """Indices of the pairs to show, in their original order: the smallest first while they fit.

    The two smallest are always taken, so that the rule can be inferred; the caller leaves out prompts that
    are still too long.
    """
    lengths = [len(render_pair(pair)) for pair in pairs]
    chosen: list[int] = []
    num_characters = 0
    for index in sorted(range(len(pairs)), key=lambda index: lengths[index])[:max_pairs]:
        num_characters += lengths[index]
        if len(chosen) >= MIN_PAIRS and num_characters > max_characters:
            break
        chosen.append(index)
    return sorted(chosen)


def render_pairs(pairs: Sequence[dict[str, Any]]) -> str:
    """Text of the pairs: 'In', rows of digits, 'Out', rows of digits, each line closed."""
    return "".join(render_pair(pair) for pair in pairs)


def render_pair(pair: dict[str, Any]) -> str:
    digits = grid_encoder("digits")
    return f"In\n{digits(pair['input'])}\nOut\n{digits(pair['output'])}\n"


def _chat(pairs: list[dict[str, Any]], test_input: Grid, options: dict[str, str]) -> Messages:
    encode = grid_encoder(options["encoder"])
    blocks = [f"Example {number}\nInput:\n{encode(pair['input'])}\n\nOutput:\n{encode(pair['output'])}\n"
              for number, pair in enumerate(pairs, start=1)]
    test = ["Test input:", encode(test_input), ""]
    intro = options["intro"].replace("{cells}", EXPLAINED[options["encoder"]])
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
    Format("compact@1", {}, choose_pairs,
           lambda pairs, *_: [{"role": "user", "content": render_pairs(pairs)}], False),
    Format("chat@1", CHAT_OPTIONS, _all_pairs, _chat, True),
)}
OWN_MESSAGES = "messages@1"  # tasks with their own messages are sent unchanged


def own_messages(task_messages: str) -> tuple[Messages, str]:
    """Messages of a task with its own messages, and the prefill: a last assistant turn is continued."""
    messages = json.loads(task_messages)
    if messages[-1]["role"] == "assistant":
        return messages[:-1], messages[-1]["content"]
    return messages, ""


def find_format(name: str) -> Format:
    """The format with this name, without a version the newest, or that of FILE.py:NAME; else StageError."""
    if ".py:" in name:
        return _user_format(name)
    matches = [known for known in FORMATS if known in (name, f"{name}@{known.rpartition('@')[2]}")]
    if not matches:
        raise StageError(f"Unknown prompt format '{name}'. Known: {', '.join(FORMATS)}, or FILE.py:NAME.")
    return FORMATS[max(matches, key=lambda known: int(known.rpartition("@")[2]))]


def _user_format(text: str) -> Format:
    """The format that FILE.py:NAME defines; its version is a hash of the file. StageError for a bad one."""
    function = load_function(text, "--prompt-format")
    parameters = list(inspect.signature(function.function).parameters.values())
    if len(parameters) < 2 or any(not isinstance(each.default, str) for each in parameters[2:]):
        raise StageError(f"--prompt-format {text}: the function takes (pairs, test_input) and options with "
                         "texts as defaults. Correct it.")
    options = {each.name: str(each.default) for each in parameters[2:]}
    return Format(f"{function.name}@{function.content_hash}", options, _all_pairs, partial(_render, function),
                  shows_test=True)


def _render(user: UserFunction, pairs: list[dict[str, Any]], test_input: Grid,
            options: dict[str, str]) -> Messages:
    """The function's result: a text, the user's turn, or messages; StageError for anything else."""
    where = f"The prompt format {user.name} in {user.path}"
    given = user.call(where, "Nothing was sampled; correct it.", pairs, test_input, **options)
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not messages or not all(map(is_turn, messages)):
        raise StageError(f"{where} returned {str(given)[:60]!r}, neither a text nor a list of messages with "
                         "role and content.")
    return messages
