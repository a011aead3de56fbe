"""Commands that care for a run, killed at some of the calls that change a file; `make chaos` kills at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.care import CASES, Case, kill_everywhere, whole_run

EVERY = 127
ALIKE = {"fix samples": "parts of completions are left out in the same way",
         "discard eval": "a training rollout ends in the same way", "discard scores": "so do scores",
         "export jsonl": "the file appears whole in the same way as parquet"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("care") / "run")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=[
    pytest.mark.slow(ALIKE[case.name])] if case.name in ALIKE else []) for case in CASES if not case.real])
def test_a_killed_command_leaves_what_the_next_one_finishes(case: Case, whole: Path, tmp_path: Path) -> None:
    told = list(kill_everywhere(case, whole, tmp_path, first=2, every=EVERY))
    assert len(told) > 1 and not any(told), told


@pytest.mark.slow("a real run, whose policy is merged after each kill")
def test_killed_at_the_care_of_policies_a_training_is_as_if_nothing_had_been() -> None:
    """In a process of its own: no thread of torch may run where one is forked."""
    done = subprocess.run([sys.executable, "-m", "tests.chaos.care", "--only", "train", "--every", "3"],
                          cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0 and " 0 failures" in done.stdout, done.stdout + done.stderr
