"""Races and kills on this machine's filesystem; those without hard links are refused."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.filesystem import survives
from tests.chaos.loop import new_run
from warehouse.store.errors import StageError

WAYS = {"exfat": (["mount", "-t", "exfat"], ["mount.exfat-fuse"]), "vfat": (["mount", "-t", "vfat"],)}


@pytest.fixture(params=list(WAYS))
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
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
    if not any(subprocess.run([*way, device, folder], capture_output=True).returncode == 0 for way in ways):
        subprocess.run(["losetup", "-d", device], capture_output=True)
        pytest.skip(f"{kind} cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    subprocess.run(["losetup", "-d", device], check=True)


@pytest.mark.slow("races and kills of dozens of processes")
def test_the_local_disk_holds_what_is_promised(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    said = list(survives([tmp_path / "here"], tmp_path / "reference"))
    assert len(said) == 6


def test_a_disk_without_hard_links_is_refused_before_there_is_a_run(mounted: Path) -> None:
    with pytest.raises(StageError, match=r"The filesystem of .* has no hard links.* Put the run on another"):
        new_run(mounted / "there")
    assert not list(mounted.rglob("warehouse.json"))
