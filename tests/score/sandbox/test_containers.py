"""Lanes where the scorer has fewer rights than root has on a machine of its own: what containers leave it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPEN_PYTHON = str(ROOT / "tests/hostile/open_python.sh")
DOCKER = ("-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,"
          "+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap")
NOBODY = ["--reuid", "65534", "--regid", "65534", "--clear-groups"]
# A program whose import is not in the lane yet: only one that can still read the interpreter's files runs it.
TRY = """
import numpy as np
from score.isolation.lockdown import Layer
from score.protocol.frames import JobKind, encode_grids, split_result
from score.sandbox.limits import Limits
from score.sandbox.program import Program
from score.sandbox.tiers import open_lanes
pool, tier = open_lanes({tier!r}, unsafe=False, limits=Limits(), num_lanes=1)
source = "import random, statistics\\ndef transform(grid):\\n    return grid\\n"
with pool:
    (_, [ending]), = pool.run([Program(JobKind.GRID, source, encode_grids([np.zeros((1, 1), np.uint8)]))])
print("nobody" if Layer.UNPRIVILEGED in tier.layers else "root", split_result(ending.result)[0])
"""
only_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"),
                               reason="needs root and setpriv")


def tried(prefix: list[str], tier: str) -> str:
    """Who the lanes of a scorer started so are, and the status (1) of a program that imports."""
    found = subprocess.run([*prefix, sys.executable, "-c", TRY.format(tier=tier)], capture_output=True,
                           text=True, cwd=ROOT, env={**os.environ, "PYTHON": sys.executable})
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout.strip()


def bounded(capabilities: str) -> list[str]:
    return ["setpriv", f"--bounding-set={capabilities}"]


@only_root
@pytest.mark.parametrize("tier", ["B", "C"])
def test_with_the_capabilities_that_docker_grants_lanes_are_nobody_and_read_any_python(tier):
    assert tried(bounded(DOCKER), tier) == "nobody 1"


@only_root
@pytest.mark.parametrize("capabilities", ["-all,+chown,+setuid,+setgid", "-all"], ids=["few", "none"])
def test_root_that_could_not_end_processes_of_nobody_keeps_lanes_its_own(capabilities):
    assert tried(bounded(capabilities), "C") == "root 1"


@only_root
@pytest.mark.skipif(not sys.base_prefix.startswith("/root/"), reason="nobody can read this interpreter")
def test_where_nobody_could_not_read_python_lanes_stay_root_without_capabilities():
    assert tried(bounded("-all,+kill,+setuid,+setgid"), "C") == "root 1"


@only_root
@pytest.mark.skipif(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
                    reason="no mount namespace can be made to show the interpreter to another user")
@pytest.mark.parametrize("prefix", [
    bounded("-all,+kill,+setuid,+setgid"),
    ["setpriv", "--no-new-privs", "--bounding-set=-all", *NOBODY],
], ids=["root in a container", "restricted pod"])
def test_where_everybody_can_read_python_lanes_are_nobody(prefix):
    assert tried([OPEN_PYTHON, *prefix], "C") == "nobody 1"


@pytest.mark.skipif(subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode != 0,
                    reason="user namespaces are refused here")
def test_in_a_rootless_container_lanes_run_as_its_one_user():
    assert tried(["unshare", "-Ur"], "C") == "root 1"
