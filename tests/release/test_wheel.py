"""The wheel alone, in an empty environment outside of the checkout: from pip to the report of the demo."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__", "tests")


@pytest.mark.slow("makes an environment with the whole CPU set, two minutes, and runs the demo in it")
@pytest.mark.engine
def test_the_wheel_brings_all_that_the_demo_needs(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("PYTHON", "ROLLHOUSE")) and name != "VIRTUAL_ENV"}
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=tmp_path,
                              env=clean)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=NOT_COPIED)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, commands = tmp_path / "venv/bin/python", tmp_path / "venv/bin"
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, tmp_path / "source")
    shutil.rmtree(tmp_path / "source")
    [wheel] = tmp_path.glob("rollhouse-*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    packages = run(python, "-m", "warehouse.start").strip() + "/requirements-cpu.txt"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "-r", packages)

    told = json.loads(run(commands / "warehouse", "doctor", "--json"))
    assert {name for name, each in told.items() if each["able"]} == {"rollout", "score", "train"}
    run(commands / "warehouse", "demo", "runs/demo", "2")
    facts = json.loads(run(commands / "warehouse", "summary", "runs/demo", "--json"))
    assert (tmp_path / "runs/demo/report.html").stat().st_size > 50_000, facts
    assert (tmp_path / "runs/demo/policies/2").is_dir()
