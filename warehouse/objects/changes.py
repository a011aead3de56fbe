"""Changes of committed objects made as one: written down in intent.json, made in steps that can be repeated.

What `warehouse.store.intent` does with files, for a run in an object store. New content is put below
`.staging/` before anything is written down; a step is then a copy within the store, a put of a text, or a
deletion. Whoever opens the run next makes the rest of what a killed command began. Before each step the
intent must still stand, so one who was slow does not repeat what another has finished.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.objects.keys import files_of
from warehouse.store.commit import reached
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes

if TYPE_CHECKING:
    from warehouse.objects.working_copy import WorkingCopy

INTENT, STAGING = "intent.json", ".staging"
ObjectStep = list[str]  # "copy", key, to; "put", key, text; "delete", key, ""
PLACES = {"tasks", "prompts", "completions", "samples", "train", "policies", "discarded", "broken", STAGING,
          "warehouse.json", "pruned.jsonl"}


def carry_out(copy: WorkingCopy, command: str, steps: Sequence[tuple[str, Path, Path | str]]) -> bool:
    """Make the changes; False if those of another command were in the way, which are made instead."""
    staging = f"{STAGING}/{uuid.uuid4().hex[:12]}"
    planned = [step for number, (action, path, other) in enumerate(steps)
               for step in _planned(copy, action, path, other, f"{staging}/{number}")]
    intent = json_bytes({"command": command, "steps": planned})
    first = copy.bucket.create(INTENT, intent) is not None
    reached("after intent", copy.root / INTENT)
    finish(copy)
    if not first:
        copy.bucket.delete([step[1] for step in planned if step[1].startswith(staging)])
    for action, path, other in steps:  # what lay here alone
        for left in (path, other if action == "replace" else path):
            if isinstance(left, Path) and left.exists() and (not copy.holds(left) or left.is_dir()):
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    copy.sync()
    return first


def finish(copy: WorkingCopy) -> str:
    """Make what is written down and not struck out; the command that had begun it, '' if there is nothing."""
    answer = copy.bucket.get(INTENT)
    if answer is None:
        return ""
    content, state = answer
    command, steps = _read(copy, content)
    for step in steps:
        if copy.bucket.head(INTENT) != state:
            break
        reached("before step", copy.root / step[1])
        _make(copy, *step)
    else:
        copy.bucket.delete([INTENT])
    copy.sync()
    return command


def _make(copy: WorkingCopy, action: str, key: str, other: str) -> None:
    if action == "copy":
        copy.bucket.copy(key, other)    # what is gone was copied, and deleted, before
    elif action == "put":
        copy.bucket.put(key, other.encode())
    else:
        copy.bucket.delete([key])


def _planned(copy: WorkingCopy, action: str, path: Path, other: Path | str,
             staging: str) -> Iterator[ObjectStep]:
    """One change of files as steps of objects; files that lie here alone are put into the store for it."""
    if isinstance(other, Path):
        source, target = (other, path) if action == "replace" else (path, other)
        pairs = dict(_stored(copy, source, target)) or dict(_staged(copy, source, target, staging))
        yield from (["copy", key, to] for key, to in pairs.items() if key != to)
        yield from (["delete", key, ""] for key, to in pairs.items() if key != to)
    elif action == "write":
        yield ["put", copy.key_of(path), other]
    elif copy.holds(path):
        yield from (["delete", key, ""] for key, _ in _stored(copy, path, path))


def _stored(copy: WorkingCopy, path: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Each object of a file or folder, and its key in another place."""
    if not copy.holds(path):
        return
    key, to = copy.key_of(path), target.relative_to(copy.root).as_posix()
    if copy.bucket.head(key):
        yield key, copy.key_of(target) if copy.holds(target) else to
    for below, _ in copy.bucket.list(key):
        yield below, f"{to}{below.removeprefix(key)}"


def _staged(copy: WorkingCopy, path: Path, target: Path, staging: str) -> Iterator[tuple[str, str]]:
    """Put files that lie here alone, and where each belongs.

    The files of a policy have keys of their own at once: its policy.json, which comes last, makes it one.
    """
    files = sorted(path.iterdir(), key=lambda file: file.name == "policy.json") if path.is_dir() else [path]
    for file in files:
        place = target.relative_to(copy.root).as_posix() if path.is_dir() else ""
        if (path / "policy.json").exists() and file.name != "policy.json":
            copy.bucket.put(f"{place}/{files_of(path / 'policy.json')}/{file.name}", file)
        else:
            copy.bucket.put(f"{staging}/{file.name}", file)
            yield f"{staging}/{file.name}", f"{place}/{file.name}" if place else copy.key_of(target)


def _read(copy: WorkingCopy, content: bytes) -> tuple[str, list[ObjectStep]]:
    """The command and its steps; StageError for what no command of ours writes."""
    try:
        intent = json.loads(content)
        command, steps = str(intent["command"]), list(intent["steps"])
        strange = next((step for step in steps if not _is_own(step)), None)
    except (ValueError, KeyError, TypeError) as error:
        raise StageError(f"{copy.address}/{INTENT} is damaged ({error}). Move it away, then run "
                         "`warehouse check`.") from error
    if strange is not None:
        raise StageError(f"{copy.address}/{INTENT} names a change that no command of ours writes: "
                         f"{json.dumps(strange)[:100]}. Look where it comes from, then remove it.")
    return command, steps


def _is_own(step: object) -> bool:
    return (isinstance(step, list) and len(step) == 3 and all(isinstance(word, str) for word in step)
            and step[0] in ("copy", "put", "delete")
            and all(key.partition("/")[0] in PLACES and ".." not in key.split("/")
                    for key in step[1:3 if step[0] == "copy" else 2]))
