"""Some of the random faults and inputs; `make chaos` tries 500 and 1,000 (python -m tests.fuzz)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow("a hundred faults, each with a copy of the run and three commands")
def test_damaged_files_and_strange_inputs_are_answered_in_a_sentence() -> None:
    """In a process of its own: no thread of torch may run where one is forked."""
    command = [sys.executable, "-m", "tests.fuzz", "--faults", "100", "--inputs", "200", "--seed", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 faults, 0 failures" in done.stdout and "200 inputs, 0 failures" in done.stdout
