"""Every hostile program in every tier this machine offers: how it ends, what it leaves, and who it harms."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from score.isolation.lockdown import Layer
from score.protocol.frames import JobKind, encode_grids
from score.sandbox.attacks import BODIES, reached_effects
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.outcomes import LOST, outcome_of
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome, Program
from score.sandbox.tiers import TIERS, missing_for
from tests.hostile.attack import CONTAINED, MARKER, REACHED, Attack
from tests.hostile.corpus import ATTACKS
from warehouse.store.errors import StageError

# Modules that make attacks easier are there to be had.
ARMED = ("signal", "resource", "socket", "mmap", "fcntl", "subprocess", "multiprocessing", "tempfile", "pty",
         "sqlite3", "urllib.request", "select", "pathlib")
LIMITS = Limits(cpu_seconds=0.25, wall_seconds=1.0, memory_mib=128)
HONEST = ("import numpy as np\n# HONEST-PROGRAM\n\ndef transform(grid):\n"
          "    return np.fliplr(np.array(grid)) if len(grid) == 2 else grid\n")
GRID = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
EXPECTED_OUTPUT = [b"EXPECTED-OUTPUT", "TARGET-GRID"]        # what programs look for in their own memory
# 1 of so many attacks is run: tests under further circumstances make do with a share of the corpus.
STEP = int(os.environ.get("HOSTILE_STEP", "1"))
MISSING = {name: missing_for(TIERS[name][0]) for name in "ABC"}
STRONGEST = next(name for name in "ABC" if MISSING[name] is None)


def grid_program(source: str, *grids: np.ndarray) -> Program:
    return Program(JobKind.GRID, source, encode_grids(list(grids)))


def run(pool: LanePool, program: Program) -> Outcome:
    """The outcome of one program."""
    [outcome] = Executor(pool).run([program])
    return outcome


def ending_of(outcome: Outcome) -> str:
    """The error class, or whether the attack says that it reached its effect."""
    if outcome.error_class:
        return str(outcome.error_class)
    return "REACHED" if REACHED in [int(grid[0, 0]) for grid in outcome.result] else CONTAINED


def lane_processes() -> set[int]:
    """Processes that are lanes, forks of lanes, or carry the mark of an attack."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if f"'scorer': {os.getpid()},".encode() in command or MARKER.encode() in command:
                found.add(int(entry))
    return found


def open_descriptors(pool: LanePool) -> int | None:
    """Descriptors of the lane; None where they cannot be seen."""
    try:
        return len(os.listdir(f"/proc/{pool.lanes[0].pid}/fd"))
    except OSError:
        return None


def things_left(bait: Path) -> list[str]:
    """What attacks left in the file system."""
    folders = [bait.parent, Path("/tmp"), Path("/dev/shm"), Path(np.__path__[0]), Path.cwd(), Path.home()]
    left = [str(path) for folder in folders for path in folder.glob(f"*{MARKER}*")]
    intact = bait.read_text() == "secret" and bait.stat().st_mode & 0o777 == 0o666
    return left if intact else [*left, "bait changed"]


@pytest.fixture(scope="module")
def bait(tmp_path_factory):
    folder = Path("/tmp") / f"bait-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "bait"
    path.write_text("secret")
    path.chmod(0o666)
    os.environ["HOSTILE_SECRET"] = "secret"
    yield path
    del os.environ["HOSTILE_SECRET"]
    path.unlink()
    folder.rmdir()


def tier_or_slow(name: str):
    """A tier as a parameter; what is weaker than the one that `score` would choose here is slow."""
    reason = "the same programs again, in a tier weaker than the strongest of this machine"
    return pytest.param(name, marks=[pytest.mark.slow(reason)] if name > STRONGEST else [])


@pytest.fixture(scope="module", params=map(tier_or_slow, "ABC"))
def lane(request, bait):
    """One lane of each tier, and what there was before any attack."""
    if MISSING[request.param]:
        pytest.skip(f"tier {request.param}: {MISSING[request.param]}")
    with LanePool(LaneConfig(TIERS[request.param][0], ARMED), LIMITS, 1) as pool:
        assert run(pool, grid_program(HONEST, GRID)).error_class is None
        yield pool, lane_processes(), open_descriptors(pool)


@pytest.mark.parametrize("attack", ATTACKS[::STEP], ids=[attack.name for attack in ATTACKS[::STEP]])
def test_attack_is_contained(lane, bait, attack: Attack):
    pool, processes, descriptors = lane
    outcome = run(pool, grid_program(attack.source.replace("BAIT", str(bait)), GRID[:1, :1]))
    assert ending_of(outcome) in attack.endings, f"{outcome.error_name}: {outcome.error_message}"
    assert (outcome.cpu_seconds or 0) < LIMITS.cpu_seconds + 0.5
    assert len(outcome.error_message or "") <= 500 and len(outcome.error_name or "") <= 80
    assert lane_processes() == processes and pool.num_restarts == 0
    assert open_descriptors(pool) == descriptors
    assert things_left(bait) == []
    following = run(pool, grid_program(HONEST, GRID))
    assert following.result is not None and np.array_equal(following.result[0], np.fliplr(GRID))


@pytest.fixture(scope="module")
def weak_lane(bait):
    """A lane with limits and nothing else: the control that shows the corpus to bite."""
    with LanePool(LaneConfig(Layer(0), ARMED), LIMITS, 1) as pool:
        yield pool


BITING = [attack for attack in ATTACKS[::STEP] if attack.bites]


@pytest.mark.parametrize("attack", BITING, ids=[attack.name for attack in BITING])
def test_without_isolation_the_attack_succeeds(weak_lane, bait, attack: Attack):
    outcome = run(weak_lane, grid_program(attack.source.replace("BAIT", str(bait)), GRID[:1, :1]))
    folders = (bait.parent, Path("/tmp"), Path("/dev/shm"))
    for left in [path for folder in folders for path in folder.glob(f"*{MARKER}*")]:
        left.rmdir() if left.is_dir() else left.unlink()
    bait.write_text("secret")
    assert ending_of(outcome) == "REACHED", f"{outcome.error_name}: {outcome.error_message}"


def test_without_isolation_nearly_every_canary_dies():
    with LanePool(LaneConfig(Layer(0)), LIMITS, 1) as pool:
        assert set(BODIES) - set(reached_effects(pool)) == {"find an open descriptor"}


def test_a_program_that_kills_its_lane_is_infrastructure_and_harms_no_other():
    killer = "import os\ndef transform(g):\n    os.kill(os.getppid(), 9)\n    while True: pass\n"
    honest = [grid_program(HONEST + f"# {number}\n", GRID) for number in range(20)]
    with LanePool(LaneConfig(Layer(0)), LIMITS, 2) as pool:
        programs = [*honest[:10], grid_program(killer, GRID), *honest[10:]]
        found = dict(pool.run(programs))
        assert pool.num_restarts >= 3                        # it was tried three times, each on a fresh lane
    assert found.pop(10) == [] and LOST.infrastructure
    assert len(found) == 20
    for number, endings in found.items():
        outcome = outcome_of(programs[number], endings, LIMITS)
        assert np.array_equal(outcome.result[0], np.fliplr(GRID))


def test_a_machine_that_keeps_ending_lanes_stops_the_stage(monkeypatch):
    monkeypatch.setattr("score.sandbox.pool.MAX_RESTARTS", 1)
    killer = "import os\ndef transform(g):\n    os.kill(os.getppid(), 9)\n    while True: pass\n"
    with LanePool(LaneConfig(Layer(0)), LIMITS, 1) as pool, pytest.raises(StageError, match="lost 2 times"):
        list(pool.run([grid_program(killer, GRID)]))


READING_PARENT = """
import os, sys
jobs = sys.stdin.buffer.read().split(b"\\0")

def run(source):
    pid = os.fork()
    if pid == 0:
        names = {}
        exec(source, names)
        os._exit(int(names["transform"]([[0]])[0][0]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

os.dup2(os.memfd_create("answer"), 3)
honest, attack = jobs
run(honest)
del honest, jobs
print(run(attack))
"""


def test_a_lane_that_read_its_jobs_would_leak_one_program_to_the_next():
    [attack] = [attack for attack in ATTACKS if attack.name == "finds the program before it in the heap"]
    honest = "def transform(grid):\n    return grid\n" + "# HONEST-PROGRAM\n" * 100
    jobs = f"{honest}\0{attack.source}".encode()
    command = [sys.executable, "-c", READING_PARENT]
    found = subprocess.run(command, input=jobs, capture_output=True, check=True)
    assert int(found.stdout) == REACHED
