"""A few of the random faults and inputs; `make chaos` tries 500 and 1,000 (python -m tests.fuzz)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def fuzz(*options: str) -> str:
    """What it prints, from a process of its own: no thread of torch may run where one is forked."""
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", *options], cwd=Path(__file__).parents[2],
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_damaged_files_and_strange_inputs_are_answered_in_a_sentence() -> None:
    told = fuzz("--faults", "3", "--inputs", "12", "--seed", "1")
    assert [line.split(",")[0] for line in told.splitlines()] == ["3 faults", "12 inputs"], told


@pytest.mark.slow("a hundred faults, each with a copy of the run and three commands")
def test_a_hundred_damaged_files_are_answered_in_a_sentence() -> None:
    told = fuzz("--faults", "100", "--inputs", "200", "--seed", "2")
    assert "100 faults, 0 failures" in told and "200 inputs, 0 failures" in told
