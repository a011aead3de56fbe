"""Races and kills on this machine's filesystem; those without hard links are refused."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.mounts import mounted
from tests.chaos.filesystem import survives
from tests.chaos.kills import ROOT
from tests.chaos.loop import new_run
from warehouse.store.errors import StageError

MOUNTS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from tests.building.mounts import mounted
with mounted(Path(sys.argv[1]), ["mount", "-t", "tmpfs", "none"]) as worked:
    print("mounted" if worked and os.path.ismount(sys.argv[1]) else "refused", flush=True)
    os.killpg(0, signal.SIGKILL)
"""
WAYS = {"exfat": (["mount", "-t", "exfat"], ["mount.exfat-fuse"]), "vfat": (["mount", "-t", "vfat"],)}


@pytest.fixture(params=list(WAYS))
def without_links(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A fresh filesystem of that kind, in a file."""
    kind, image, folder = request.param, tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as stream:
        stream.truncate(200 * 2**20)
    folder.mkdir()
    make = shutil.which(f"mkfs.{kind}")
    if not make or subprocess.run([make, image], capture_output=True).returncode:
        pytest.skip(f"mkfs.{kind} does not make one here")
    loop = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    ways = [way for way in WAYS[kind] if not loop.returncode and shutil.which(way[0])]
    device = loop.stdout.strip()
    with mounted(folder, *([*way, device] for way in ways), device=device) as worked:
        if not worked:
            pytest.skip(f"{kind} cannot be mounted here")
        yield folder


def test_a_killed_test_leaves_no_filesystem_mounted(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", MOUNTS_AND_DIES, tmp_path], stdout=subprocess.PIPE,
                          text=True, start_new_session=True, cwd=ROOT)
    assert died.returncode == -signal.SIGKILL
    if died.stdout != "mounted\n":
        pytest.skip("mounting a filesystem needs root")
    assert not os.path.ismount(tmp_path)    # who unmounts holds the output open, which was read to its end


@pytest.mark.slow("races and kills of dozens of processes")
def test_the_local_disk_holds_what_is_promised(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    said = list(survives([tmp_path / "here"], tmp_path / "reference"))
    assert len(said) == 6


def test_a_disk_without_hard_links_is_refused_before_there_is_a_run(without_links: Path) -> None:
    with pytest.raises(StageError, match=r"The filesystem of .* has no hard links.* Put the run on another"):
        new_run(without_links / "there")
    assert not list(without_links.rglob("warehouse.json"))
