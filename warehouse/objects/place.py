"""Where a run is worked on: its folder, or the working copy of what lies in an object store."""

import os
from pathlib import Path

from warehouse.store.commit import COPY_MARKER


def sync_copy(path: str | Path, *, config_only: bool = False) -> Path:
    """The folder to work in: a run folder itself; of an address its working copy, brought up to date.

    With `config_only` no more than its config.toml. A local run loads nothing for it.
    """
    if ":/" not in str(path) and not os.path.exists(f"{path}/{COPY_MARKER}"):  # False for what is no path
        return Path(path)
    from warehouse.objects.working_copy import open_copy
    copy = open_copy(path)
    if config_only:
        copy.bring_config()
    else:
        copy.sync()
    return copy.root
