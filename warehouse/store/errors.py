"""The one exception that users see: what is wrong and the way out, in one sentence; helpers for sentences."""

import json
import os
import resource
from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import Any

STOPPED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: "try again later", what batch systems requeue on


class StageError(Exception):
    """A problem that the user can fix; commands print it without a traceback and exit with `exit_code`."""

    exit_code = 1


class UnusableFile(StageError):
    """A path on the command line that cannot be read; `problem`: missing, folder, file or form."""

    def __init__(self, path: Path, problem: str, sentence: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(sentence)


class NoRun(StageError):
    """A path without a run that this version reads; `version` is its schema version, if it has one."""

    def __init__(self, path: str | Path, version: int | None, sentence: str) -> None:
        self.path, self.version = path, version
        super().__init__(f"{path} {sentence}")


class Damaged(StageError):
    """A file of the run at `path` that differs from what was written, and `why`."""

    def __init__(self, path: Path, why: str, sentence: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path} {sentence}")


class SettingChanged(StageError):
    """An unfinished stage run with another value of a setting: `title`, `name`, `before` and `now`."""

    def __init__(self, title: str, name: str, before: Any, now: Any, way_out: str) -> None:
        self.title, self.name, self.before, self.now = title, name, before, now
        super().__init__(f"{title} was started with {_typed(name)} = {shorten(before, 80)}, now it is "
                         f"{shorten(now, 80)}. {way_out}")


def moved_away(run: Path) -> StageError:
    """The error for a run folder that was there when the command began."""
    return StageError(f"{run} is no run any more: it was moved or removed while this command worked. Run the "
                      "command again where the run is.")


def option_name(setting: str) -> str:
    """The present name of a setting that is stored under its option's name of 0.2, as SQL has it."""
    return setting.replace("per_shard", "per_batch")


def _typed(setting: str) -> str:
    """A setting under the name that is typed; a hash has none."""
    other = {"augmentation": "augment", "load_in_4bit": "load-4bit", "policy_version": "policy"}
    return setting if setting.endswith("sha256") else (
        other.get(setting) or option_name(setting).replace("_", "-"))


def check_file(path: Path, forms: Collection[str] = (), way_out: str = "", named_by: str = "") -> None:
    """UnusableFile if `path` is not a file, or if its name has none of the endings `forms`."""
    begin = f"{named_by}: " if named_by else ""
    if os.path.isdir(path):
        raise UnusableFile(path, "folder", f"{begin}{path} is a folder. Name a file in it.")
    if not os.path.exists(path):
        raise UnusableFile(path, "missing", f"{begin}There is no file {path.absolute()}. Name it as seen "
                                            "from the folder that the command runs in, or by its whole path.")
    if forms and not path.name.endswith((*forms,)):
        raise UnusableFile(path, "form", f"{path} is none of the files that are read: "
                                         f"{', '.join(forms)}. Convert it{way_out}.")


def first_line(error: BaseException) -> str:
    """An error in one line, with its type."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:400].rstrip('.')}"


def printable(text: str, *, kept: str = "\n\t") -> str:
    """Foreign text made safe for a terminal: control characters, except `kept`, are spelled out."""
    return "".join(letter if letter.isprintable() or letter in kept else ascii(letter)[1:-1]
                   for letter in text)


def shorten(value: object, most: int) -> str:
    """A value as JSON, shortened to `most` characters."""
    text = json.dumps(value)
    return text if len(text) <= most else text[:most - 3] + "..."


def counted(number: int, noun: str, style: str = "") -> str:
    """`1 task`, `2 tasks`; with the style `,` `1,000 tasks`."""
    return f"{number:{style}} {noun}{'' if number == 1 else 's'}"


def shell_quote(word: object) -> str:
    """A word of a printed command, quoted for the shell if needed."""
    return quote(str(word))


def check_addresses(gib: float, what: str) -> None:
    """StageError if `ulimit -v` is below `gib`: native code would end the process without a message."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < gib * 2**30:
        raise StageError(f"{what} needs at least {gib:g} GiB of addresses, `ulimit -v` allows "
                         f"{limit / 2**30:.2g}. Raise it, then run the same command again.")
