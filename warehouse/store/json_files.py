"""The JSON files of a run, with the required keys and types, or an error that names them.

Each is written with a `checksum` of its other keys, which is checked and removed on reading. A file without
one is accepted: it is from an earlier version, or a person edited it and removed the line.
"""

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

from warehouse.store.errors import Damaged, StageError

STALE_ATTEMPTS = 9
CHECKSUM = "checksum"


def json_bytes(value: object) -> bytes:
    """The content of a JSON file of the run; an object gets a checksum."""
    value = json.loads(json.dumps(value))  # as it will be read: keys become texts
    if isinstance(value, dict):
        value[CHECKSUM] = _checksum(value)
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _checksum(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, **types: type | tuple[type, ...]) -> dict[str, Any] | None:
    """An object with at least these keys of these types; None without a file; StageError if it is damaged."""
    try:
        value = json.loads(fresh_text(path))
    except FileNotFoundError as error:
        if path.is_symlink():
            raise damaged(path, "it is a broken link") from error
        return None
    except (ValueError, RecursionError) as error:  # not JSON, or not text
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "it is not an object")
    checksum = value.pop(CHECKSUM, None)
    if checksum not in (None, _checksum(value)):
        raise damaged(path, f"its {CHECKSUM} says that something in it was changed; if you did that, take "
                            "the line out")
    for key, kind in types.items():
        if not isinstance(value.get(key), kind):
            raise damaged(path, f"'{key}' is missing or of another type")
    return value


def damaged(path: Path, why: str) -> Damaged:
    """The error for a file of the run that differs from what was written."""
    restore = "Restore it from a copy of the run"      # it cannot be derived
    ways_out = {"warehouse.json": restore, "_log": restore,
                "object-store.json": "Remove it, and name the run by its address in the store"}
    name = path.parent.name if path.parent.name == "_log" else path.name
    way_out = ways_out.get(name, "Run `warehouse check --fix`, or restore the file from a copy")
    return Damaged(path, why, f"is damaged ({why}). {way_out}.")


def fresh_text(path: Path) -> str:
    """The text of a file; over NFS, a file replaced by another client is stale: then the new one is read."""
    for attempt in range(STALE_ATTEMPTS + 1):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        except IsADirectoryError as error:
            raise damaged(path, "it is a folder") from error
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == STALE_ATTEMPTS:
                raise StageError(f"{path} cannot be opened: {error.strerror}. Fix that, then run the same "
                                 "command again.") from error
    raise AssertionError("unreachable")


def option_value(text: str) -> Any:
    """An option's value parsed as JSON if it is a number, a list or a boolean; else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
