"""Read the JSON files of a run: whole, of the keys and types they must have, or an error that names them."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError

STALE_ATTEMPTS = 9


def read_json(path: Path, **types: type | tuple[type, ...]) -> dict[str, Any] | None:
    """An object with at least these keys of these types; None without a file; StageError if it is damaged."""
    try:
        value = json.loads(_fresh_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StageError(f"{path} cannot be opened: {error.strerror}. Mend that, then run the same command "
                         "again.") from error
    except (ValueError, RecursionError) as error:  # not JSON, or not even text
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "it is no object")
    for key, kind in types.items():
        if not isinstance(value.get(key), kind):
            raise damaged(path, f"'{key}' is missing or of another type")
    return value


def damaged(path: Path, why: str) -> StageError:
    """The error for a file of the run that is not what was written."""
    return StageError(f"{path} is damaged ({why}). Run `warehouse repair` on the run, or restore the file "
                      "from a copy.")


def _fresh_text(path: Path) -> str:
    """The text of a file; over NFS one that another client replaces just now is stale: then the new one."""
    for _ in range(STALE_ATTEMPTS):
        try:
            return path.read_text()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_text()
