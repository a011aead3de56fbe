"""Changes of several files made as one: written down first, made in steps that can be repeated, struck last.

A command that dies in between leaves RUN/intent.json; whoever opens the run next makes the rest of it. Two
processes may make the same changes at once: a step that finds its work done does nothing.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from warehouse.objects import changes
from warehouse.store.commit import commit_json, flush, replace_bytes, saying_why, twin_of
from warehouse.store.errors import StageError
from warehouse.store.json_files import read_json

INTENT = "intent.json"
Step = tuple[str, Path, Path | str]  # what is done (see ACTIONS), to which path, with which path or text


def carry_out(root: Path, command: str, steps: Sequence[Step]) -> bool:
    """Make the changes; False if those of another command were in the way, which are made instead."""
    if twin := twin_of(root / INTENT):
        return changes.carry_out(twin, command, steps)
    written = [[action, str(path.relative_to(root)),
                str(other.relative_to(root)) if isinstance(other, Path) else other]
               for action, path, other in steps]
    first = commit_json(root / INTENT, {"command": command, "steps": written})
    finish_intent(root)
    return first


def finish_intent(root: Path) -> str:
    """Make what is written down and not struck out; the command that had begun it, '' if there is nothing."""
    if twin := twin_of(root / INTENT):
        return changes.finish(twin) if (root / INTENT).exists() else ""
    intent = read_json(root / INTENT, command=str, steps=list)
    if intent is None:
        return ""
    for step in intent["steps"]:
        if not is_own_step(root, step):
            raise StageError(f"{root / INTENT} names a change that no command of ours writes: "
                             f"{json.dumps(step)[:100]}. Look where it comes from, then remove it.")
    with saying_why(root / INTENT):
        for action, path, other in intent["steps"]:
            ACTIONS[action](root / path, root / other if action in ("move", "replace") else other)
            if (root / path).parent.exists():
                flush((root / path).parent)
        (root / INTENT).unlink(missing_ok=True)
    return intent["command"]


def is_own_step(root: Path, step: object) -> bool:
    """True for a step as `carry_out` writes it: a known action, and no path that leads out of the run.

    Whoever opens a run carries its steps out, also in a run that came from somebody else.
    """
    if not (isinstance(step, list) and len(step) == 3 and all(isinstance(word, str) for word in step)
            and step[0] in ACTIONS):
        return False
    paths = [root / text for text in step[1:3 if step[0] in ("move", "replace") else 2]]
    inside = root.resolve()
    return all(".." not in path.parts and path != root and path.parent.resolve().is_relative_to(inside)
               for path in paths)


def _move(path: Path, target: Path) -> None:
    """A target that stands was moved there before; what has the former name now is something new."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.rename(path, target)


def _replace(path: Path, by: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.replace(by, path)


def _write(path: Path, text: str) -> None:
    replace_bytes(path, text.encode())


def _remove(path: Path, _: str) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


ACTIONS: dict[str, Callable[[Path, Path | str], None]] = {
    "move": _move, "replace": _replace, "write": _write, "remove": _remove}  # type: ignore[dict-item]
