"""Where to work on a run: its folder, or the working copy of a run in an object store."""

from __future__ import annotations

import os
from pathlib import Path

from warehouse.objects.bucket import is_address, normal_address
from warehouse.store.commit import COPY_MARKER, TWINS, Twin, replace_bytes
from warehouse.store.errors import StageError, UnusableFile
from warehouse.store.json_files import json_bytes, read_json


def sync_copy(path: str | Path, *, config_only: bool = False) -> Path:
    """The folder to work in: a run folder itself, or the updated working copy of an address.

    With `config_only`, only its config.toml is updated. A local run loads no library for this.
    """
    if not is_address(path) and not os.path.exists(f"{path}/{COPY_MARKER}"):  # False for invalid paths
        if os.path.exists(path) and not os.path.isdir(path):
            raise UnusableFile(Path(path), "file", f"{path} is a file. Name the folder of a run; in "
                               "the shell, FOLDER/*/ is every folder in it.")
        return Path(path)
    copy = open_copy(path)
    if config_only:
        copy.bring_config()
    else:
        copy.sync()
    return copy.root


def open_copy(path: str | Path) -> Twin:
    """The working copy of an address, created if missing, or the one in this folder."""
    from warehouse.objects.working_copy import WorkingCopy
    if is_address(path):
        address = normal_address(path)
        cache = Path(os.environ.get("ROLLHOUSE_CACHE") or Path.home() / ".cache" / "rollhouse")
        root = cache.resolve() / address.replace("://", "/")
        if not (root / COPY_MARKER).exists():
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:        # including refusals of /proc, /sys
                raise StageError(f"Cannot make the working copy {root} ({error.strerror}). Name a folder for "
                                 "such copies in ROLLHOUSE_CACHE.") from error
            replace_bytes(root / COPY_MARKER, json_bytes({"address": address}))
    else:
        root = Path(path).resolve()
        address = (read_json(root / COPY_MARKER, address=str) or {})["address"]
    if root not in TWINS:
        TWINS[root] = WorkingCopy(root, address)
    return TWINS[root]
