"""The commands of README and tutorial run, in their order, with the real engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a test does not do: install, and train a large model on a GPU.
NOT_HERE = re.compile(r"^(make|source|pip|python3|warehouse demo|MODEL=)|requirements-gpu|runs/(arc|mbpp)")


def commands(page: str) -> str:
    """The ```bash blocks of a page as one script."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    blocks = [block for block in blocks if not NOT_HERE.search(block.splitlines()[-1])]
    return "".join(line for block in blocks for line in block.splitlines(keepends=True)
                   if not NOT_HERE.search(line))


def run_script(script: str, folder: Path) -> str:
    """What a script prints in a folder that has the examples."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True,
                          cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow("512 completions of the demo's pool and two arms, by the real engine")
@pytest.mark.engine
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    script = commands("README.md")
    assert script.count("runs/first") == 7
    said = run_script(script, tmp_path)
    assert "wrote policy 1" in said and "larger-rate" in said


@pytest.mark.slow("three iterations, a task and a reward of one's own and two arms, by the real engine")
@pytest.mark.engine
def test_the_commands_of_the_tutorial_run(tmp_path: Path) -> None:
    said = run_script(commands("docs/tutorial.md"), tmp_path)
    assert "iteration 2 " in said and "double" in said and "larger-rate" in said
    assert (tmp_path / "runs" / "tutorial" / "report.html").stat().st_size < 2 << 20


@pytest.mark.slow("an iteration and two evaluations, by the real engine")
@pytest.mark.engine
def test_the_demo_runs_and_names_two_questions(tmp_path: Path) -> None:
    said = run_script(f"warehouse demo {tmp_path}/run 1", tmp_path)
    assert "The demo is complete" in said
    questions = re.findall("^  warehouse sql .*", said, flags=re.MULTILINE)
    assert re.search(r"^eval +400 +0\.\d", run_script(questions[1], tmp_path), flags=re.MULTILINE)
