"""Names that become folders: purposes, labels of evaluations, scorers."""

from __future__ import annotations

import re

from warehouse.store.errors import StageError

FOLDER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_name(what: str, name: str) -> str:
    """The name; StageError if it cannot be a part of a folder's name on every filesystem."""
    if not FOLDER_NAME.fullmatch(name):
        shown = ascii(name if len(name) <= 40 else f"{name[:40]}..")
        raise StageError(f"{what} {shown} is not possible: it may have up to 100 letters (A to Z), digits, "
                         "'_', '.' and '-'. Choose another name.")
    return name
