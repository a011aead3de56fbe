"""`make install` makes the environment of the requirements that are typed, or of those it was made from."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPU, GPU = "requirements-cpu.txt", "requirements-gpu.txt"


@pytest.mark.parametrize(("made_from", "typed", "installed", "emptied"), [
    (CPU, [], None, False), (GPU, [], None, False), (CPU, [CPU], None, False),
    (CPU, [GPU], GPU, True), (GPU, [CPU], CPU, True)])
def test_other_requirements_make_the_environment_anew(
        tmp_path: Path, made_from: str, typed: list[str], installed: str | None, emptied: bool) -> None:
    for name in ("Makefile", "pyproject.toml", CPU, GPU):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/requirements").write_text(f"{made_from}\n")
    (tmp_path / ".venv/ready").touch()
    said = subprocess.run(
        ["make", "-n", "install", *(f"REQUIREMENTS={name}" for name in typed)], cwd=tmp_path, text=True,
        capture_output=True, check=True,
        env={key: value for key, value in os.environ.items() if key not in ("REQUIREMENTS", "VENV")}).stdout
    assert (f" -r {installed}" in said if installed else " -r " not in said), said
    assert ("-m venv --clear .venv" in said) == emptied
