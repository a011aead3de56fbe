"""Filesystems that tests mount, and that are gone when the tests are, also when these are killed."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# It waits for the end of its input, which comes when the test closes it or dies, in whatever way.
AT_THE_END = 'read -r _; umount -l "$1" 2> /dev/null; test -z "$2" || losetup -d "$2"'


@contextmanager
def mounted(folder: Path, *ways: Sequence[str], device: str = "") -> Iterator[bool]:
    """Mount on a folder by the first of the ways that works; False if none does. A loop `device` is freed."""
    with subprocess.Popen(["sh", "-c", AT_THE_END, "-", folder, device], stdin=subprocess.PIPE,
                          start_new_session=True) as keeper:
        yield any(subprocess.run([*way, folder], capture_output=True).returncode == 0 for way in ways)
        keeper.communicate()
