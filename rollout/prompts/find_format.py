"""Which prompt format is meant: ours, or `def NAME(pairs, test_input, option="..")` in a user's file."""

import inspect
from functools import cache, partial

from rollout.prompts.formats import FORMATS, Format, Messages, Shown, all_pairs
from warehouse.stages.user_code import UserFunction, load_function
from warehouse.store.errors import StageError
from warehouse.tasks.task_files import is_turn


def find_format(name: str) -> Format:
    """The format of a name, without a version the newest, or that of FILE.py:NAME; else StageError."""
    if ".py:" in name:
        return user_format(name)
    matches = [known for known in FORMATS if known in (name, f"{name}@{known.rpartition('@')[2]}")]
    if not matches:
        raise StageError(f"Unknown prompt format '{name}'. Known: {', '.join(FORMATS)}, or FILE.py:NAME.")
    return FORMATS[max(matches, key=lambda known: int(known.rpartition("@")[2]))]


@cache
def user_format(text: str) -> Format:
    """The format that FILE.py:NAME defines; its version is a hash of the file. StageError for a bad one."""
    function = load_function(text, "--prompt-format")
    parameters = list(inspect.signature(function.function).parameters.values())
    if len(parameters) < 2 or any(not isinstance(each.default, str) for each in parameters[2:]):
        raise StageError(f"--prompt-format {text}: the function takes (pairs, test_input) and options with "
                         "texts as defaults. Correct it.")
    options = {each.name: str(each.default) for each in parameters[2:]}
    return Format(f"{function.name}@{function.content_hash}", options, all_pairs, partial(_render, function),
                  shows_test=True)


def _render(user: UserFunction, shown: Shown, options: dict[str, str]) -> Messages:
    """What the function gives: a text, the user's turn, or messages; StageError for anything else."""
    where = f"The prompt format {user.name} in {user.path}"
    given = user.call(where, "Nothing was sampled; correct it.", shown.pairs, shown.test_input, **options)
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not messages or not all(map(is_turn, messages)):
        raise StageError(f"{where} returned {str(given)[:60]!r}, neither a text nor a list of messages with "
                         "role and content.")
    return messages
