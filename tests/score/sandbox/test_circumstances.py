"""The hostile corpus again, a share of it, as another user and as inside a container."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from score.sandbox.tiers import TIERS, missing_for

HOSTILE = Path(__file__).parents[2] / "hostile"
CORPUS = ["-v", "tests/score/sandbox/test_hostile.py", "-k", "contained"]
CONFINED = [sys.executable, "-m", "tests.hostile.confined"]


def passed(command: list[str], step: int) -> int:
    """Number of tests that passed, when none failed."""
    found = subprocess.run(command, capture_output=True, text=True, cwd=HOSTILE.parent.parent,
                           env={**os.environ, "HOSTILE_STEP": str(step), "PYTHON": sys.executable})
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    counted = re.search(r"(\d+) passed", found.stdout)
    assert counted, found.stdout[-300:]
    return int(counted[1])


@pytest.mark.slow("a quarter of the hostile programs again, in every tier")
def test_attacks_are_contained_when_an_unprivileged_user_scores():
    if os.geteuid() != 0:
        pytest.skip("not root: tests/score/sandbox/test_hostile.py ran as an unprivileged user already")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made to show the interpreter to another user")
    num_tiers = sum(missing_for(layers) is None for name, (layers, _words) in TIERS.items() if name != "D")
    assert passed([str(HOSTILE / "as_nobody.sh"), *CORPUS], 4) >= 80 * num_tiers


@pytest.mark.slow("a quarter of the hostile programs again")
def test_attacks_are_contained_where_containers_forbid_namespaces_and_the_kernel_has_no_landlock():
    assert passed([*CONFINED, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *CORPUS], 4) >= 80


def test_in_a_container_the_doctor_finds_tier_c():
    doctor = [sys.executable, "-c", "from warehouse.cli import cli; cli()", "doctor", "score"]
    found = subprocess.run([*CONFINED, *doctor], capture_output=True, text=True, check=True)
    assert "tier A (bubblewrap, Landlock and seccomp): not here: the kernel" in found.stdout
    assert "score: uses tier C\n" in found.stdout
