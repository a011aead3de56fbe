"""Honest programs in a locked process, frames, the filter, limits, lost lanes, and what is left behind."""

import errno
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from score.isolation import seccomp
from score.isolation.lockdown import Layer
from score.protocol.frames import (
    BadFrame,
    JobKind,
    decode_error,
    decode_grids,
    encode_grids,
    split_result,
)
from score.protocol.plain_data import NotPlain, tag, untag
from score.sandbox import lane_handle
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.outcomes import outcome_of
from score.sandbox.pool import LanePool, usable_cores
from score.sandbox.program import Outcome, Program
from tests.building.runs import new_run
from tests.building.texts import FLIP, add_rollout, fenced

STRICT = LaneConfig(Layer.SECCOMP)
GRID = np.array([[1, 2, 0], [4, 5, 0], [0, 0, 9]], dtype=np.uint8)


def outcomes_of(pool: LanePool, sources: list[str]) -> list[Outcome]:
    """One outcome per source, each run on GRID."""
    programs = [Program(JobKind.GRID, source, encode_grids([GRID])) for source in sources]

    return Executor(pool).run(programs)


@pytest.fixture(scope="module")
def pool():
    with LanePool(STRICT, Limits(cpu_seconds=2.0, wall_seconds=20.0), 1) as pool:
        yield pool


HONEST = {
    "numpy random": "rng = np.random.default_rng(0)\n    g = g + rng.integers(0, 1, g.shape)",
    "numpy legacy random": "np.random.shuffle(g)",
    "random": "import random\n    random.shuffle([1, 2])",
    "fft": "np.fft.fft2(g)",
    "linalg": "np.linalg.inv(g + 10 * np.eye(3))",
    "masked": "np.ma.masked_equal(g, 0).sum()",
    "median": "np.median(g)",
    "percentile": "np.percentile(g, 30)",
    "unique": "np.unique(g, axis=0, return_counts=True)",
    "pad": "g = np.pad(g, 1, mode='reflect')",
    "kron": "g = np.kron(g, np.ones((2, 2), int))",
    "einsum": "np.einsum('ij->ji', g)",
    "histogram": "np.histogram(g)",
    "windows": "np.lib.stride_tricks.sliding_window_view(g, (2, 2))",
    "polynomial": "np.polynomial.Polynomial([1, 2])(g)",
    "print array": "print(repr(g), g)",
    "isin": "np.isin(g, [1])",
    "nan": "np.nanmedian(np.where(g > 0, g, np.nan))",
    "vectorize": "np.vectorize(lambda x: x + 1)(g)",
    "save to memory": "import io\n    np.save(io.BytesIO(), g)",
    "char": "np.char.upper(['a'])",
    "dataclass": "from dataclasses import dataclass\n    @dataclass\n    class P:\n        x: int\n    P(1)",
    "collections": "from collections import Counter, deque\n    Counter(g.ravel().tolist()).most_common(1)",
    "itertools": "import itertools, functools, heapq, bisect, operator, copy, math\n    copy.deepcopy([1])",
    "enum": "from enum import Enum\n    class C(Enum):\n        A = 1\n    C(1)",
    "typing": "x: List[Tuple[int, int]] = [(1, 2)]",
    "fractions": "from fractions import Fraction\n    Fraction(1, 3)",
    "strptime": "import datetime\n    datetime.datetime.strptime('2020', '%Y')",
    "hash": "import hashlib\n    hashlib.sha256(b'x')",
    "recursion": "def f(n): return n if n == 0 else f(n - 1)\n    f(900)",
    "json": "import json\n    json.loads(json.dumps([1]))",
    "warning": "np.array([1]) / np.array([0])",
    "traceback": "import traceback\n    try: 1 / 0\n    except Exception: traceback.format_exc()",
    "regular expression": "import re\n    re.sub('a', 'b', 'a')",
    "decimal": "import decimal\n    decimal.Decimal('1.1') * 3",
    "flood fill": "stack = [(0, 0)]\n    while stack: stack.pop()",
    "sorted set": "sorted({'b', 'a'})",
    "sum over axis": "g.sum(axis=0), g.cumsum(), np.argsort(g), np.roll(g, 1), np.tile(g, 2)",
    "rot90": "g = np.rot90(g, 3)",
    "logical": "np.logical_and(g > 0, g < 3)",
    "time": "import time\n    time.sleep(0.001)",
    "apply along axis": "np.apply_along_axis(sorted, 0, g)",
    "meshgrid": "np.meshgrid(range(3), range(3))",
    "array to string": "np.array2string(g, separator=',')",
    "interp": "np.interp(1.5, [1, 2], [3, 4])",
    "loadtxt": "import io\n    np.loadtxt(io.StringIO('1 2'))",
    "packed": "import bz2, gzip, lzma\n    [m.decompress(m.compress(b'x')) for m in (bz2, gzip, lzma)]",
    "xml": "import xml.etree.ElementTree as ET\n    ET.fromstring(ET.tostring(ET.Element('a')))",
    "parsed": "import shlex, tomllib, configparser\n    shlex.split('a b'), tomllib.loads('a = 1')\n"
              "    configparser.ConfigParser().read_string('[a]\\nb = 1')",
    "colours": "import colorsys\n    colorsys.rgb_to_hsv(1, 0, 0)",
    "statistics": "import statistics\n    statistics.mode([1, 1, 2])",
}


def test_honest_programs_run_in_a_locked_process(pool):
    sources = [
        f"import numpy as np\n\ndef transform(g):\n    {body}\n    return g\n" for body in HONEST.values()
    ]
    failed = {
        name: (outcome.error_class, outcome.error_name, outcome.error_message)
        for name, outcome in zip(HONEST, outcomes_of(pool, sources), strict=True)
        if outcome.error_class
    }
    assert failed == {}


@pytest.mark.parametrize("by", ["a .pth file", "links"])
def test_packages_that_lie_elsewhere_load_their_late_parts(tmp_path, by):
    """As in an environment made beside another one that has numpy, in the best tier of this machine."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    [packages] = tmp_path.glob("lib/*/site-packages")
    others = Path(np.__file__).parents[1]
    if by == "links":
        for package in others.iterdir():
            (packages / package.name).symlink_to(package)
    else:
        (packages / "other.pth").write_text(f"{others}\n")
    source = "import numpy as np\ndef transform(g):\n    return np.random.permutation(g)\n"
    (tmp_path / "program.py").write_text(
        "from score.sandbox.tiers import open_lanes\n"
        "from tests.score.sandbox.test_limits_and_isolation import Limits, outcomes_of\n"
        "pool, tier = open_lanes(None, unsafe=False, limits=Limits(), num_lanes=1)\n"
        f"with pool:\n    print(outcomes_of(pool, [{source!r}]))\n")
    done = subprocess.run([tmp_path / "bin" / "python", tmp_path / "program.py"], text=True,
                          capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])})
    assert "error_class=None" in done.stdout, done.stdout + done.stderr


def test_of_a_folder_that_holds_other_things_beside_numpy_a_lane_reads_numpy_alone(tmp_path, monkeypatch):
    for name in ("numpy", "numpy.libs", "tasks"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(np, "__file__", str(tmp_path / "numpy" / "__init__.py"))
    beside = [folder for folder in lane_handle.readable_folders(STRICT)
              if Path(folder).is_relative_to(tmp_path) or tmp_path.is_relative_to(folder)]
    assert beside == [str(tmp_path / "numpy"), str(tmp_path / "numpy.libs")]


def test_an_allowed_package_that_links_have_elsewhere_is_readable_there(tmp_path):
    store = tmp_path / "store" / "lately"
    store.mkdir(parents=True)
    (store / "__init__.py").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lately").symlink_to(store)
    config = LaneConfig(Layer.SECCOMP, imports=("lately",), import_paths=(str(tmp_path / "mine"),))
    folders = lane_handle.readable_folders(config)
    assert str(store) in folders and str(store.parent) not in folders


def test_random_numbers_are_those_of_the_program(pool):
    source = (
        "import random, numpy as np\n\ndef transform(g):\n"
        "    return [[random.randint(0, 9), np.random.randint(10)]] * 2\n"
    )
    first, second = outcomes_of(pool, [source, source + "# other\n"])
    with LanePool(STRICT, Limits(), 1) as other_lane:
        [again] = outcomes_of(other_lane, [source])
    assert np.array_equal(first.result[0], again.result[0])
    assert first.result[0].shape == second.result[0].shape == (2, 2)


def test_equal_programs_run_once(pool):
    executor = Executor(pool)
    programs = [Program(JobKind.GRID, FLIP, encode_grids([GRID])) for _ in range(5)]
    executor.run(programs)
    executor.run(programs)
    assert executor.num_run == 1


def test_the_cpu_limit_does_not_depend_on_the_load_of_the_machine():
    spin = (
        "import time\ndef transform(g):\n    end = time.process_time() + {}\n"
        "    while time.process_time() < end: pass\n    return g\n"
    )
    sources = [spin.format(seconds) for seconds in (0.25, 0.25, 0.6)] * 2
    sources = [source + f"# {number}\n" for number, source in enumerate(sources)]
    with LanePool(STRICT, Limits(cpu_seconds=0.4, wall_seconds=2.0), 3 * usable_cores()) as pool:
        found = [outcome.error_class for outcome in outcomes_of(pool, sources)]
    assert found == [None, None, "timeout_cpu"] * 2


def test_memory_is_limited_above_the_empty_process():
    hold = "import numpy as np\ndef transform(g):\n    x = np.ones({} << 17)\n    return g\n"
    with LanePool(STRICT, Limits(memory_mib=64), 1) as pool:
        found = outcomes_of(pool, [hold.format(40), hold.format(80)])
    assert [outcome.error_class for outcome in found] == [None, "memory"]
    assert found[0].max_rss_mib > 40


def test_programs_start_no_threads_and_run_them_in_turn():
    threads = (
        "import threading, _thread\nimport numpy as np\ndef transform(g):\n    out = []\n"
        "    t = threading.Thread(target=lambda: out.append(1))\n    t.start()\n    t.join()\n"
        "    return [out]\n"
    )
    raw = "import _thread\ndef transform(g):\n    _thread.start_new_thread(print, ())\n    return g\n"
    with LanePool(STRICT, Limits(), 1) as pool:
        assert [outcome.error_class for outcome in outcomes_of(pool, [threads, raw])] == [None, "runtime"]


def test_a_module_of_the_users_own_can_be_allowed(tmp_path):
    (tmp_path / "griddsl.py").write_text("def same(g):\n    return g\n")
    source = "from griddsl import *\ndef transform(g):\n    return same(g)\n"
    with LanePool(LaneConfig(Layer.SECCOMP, ("griddsl",), (), (str(tmp_path),)), Limits(), 1) as pool:
        assert outcomes_of(pool, [source])[0].error_class is None
    with LanePool(STRICT, Limits(), 1) as pool:
        assert outcomes_of(pool, [source])[0].error_class == "import_not_allowed"


POOL = """
import queue, threading
jobs, done = queue.SimpleQueue(), queue.SimpleQueue()
def work():
    while True:
        job = jobs.get()
        try:
            done.put(job())
        except BaseException as error:
            done.put(error)
threading.Thread(target=work, daemon=True).start()
"""


def test_threads_of_an_imported_module_are_under_the_filter(tmp_path):
    (tmp_path / "threadpool.py").write_text(POOL)
    source = (
        "import threadpool\ndef transform(g):\n    threadpool.jobs.put(lambda: open('/etc/passwd').read())\n"
        "    raise threadpool.done.get()\n"
    )
    with LanePool(LaneConfig(Layer.SECCOMP, ("threadpool",), (), (str(tmp_path),)), Limits(), 1) as pool:
        [outcome] = outcomes_of(pool, [source])
    assert outcome.error_name == "PermissionError"


def test_nothing_that_a_program_wrote_is_left_for_the_next(pool):
    head = "import os\n# {}\ndef transform(g):\n    "
    write = head + "os.pwrite(3, b'LEFT' * 99, 5000)\n    os.lseek(3, 7, 0)\n    return g\n"
    read = head + "return [[len(os.pread(3, 1 << 16, 0)) % 10, os.lseek(3, 0, 1)]]\n"
    found = outcomes_of(pool, [source.format(number) for source in (write, read) for number in range(4)])
    assert [outcome.error_class for outcome in found] == [None] * 8
    assert [outcome.result[0].tolist() for outcome in found[4:]] == [[[0, 0]]] * 4


def test_a_script_reads_its_own_input_and_no_more(pool):
    source = "import sys\nprint(sys.stdin.read()[::-1])\n"
    for text in ("x" * 50_000, "ab", "", "cd" * 9):
        [(_number, [ending])] = pool.run([Program(JobKind.STDIO, source, b"", text.encode())])
        assert ending.stdout == text[::-1].encode() + b"\n"


# Frames ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_no_bytes_break_the_decoders(content):
    """They are read or refused with the one error that the scorer expects."""
    for decode, refusal in ((decode_grids, BadFrame), (split_result, BadFrame),
                            (lambda body: decode_error(body, 9), BadFrame)):
        try:
            decode(content)
        except Exception as error:
            assert isinstance(error, refusal), error


@given(
    st.lists(
        st.integers(1, 30).flatmap(lambda side: st.just(np.full((side, 31 - side), side % 10, np.uint8))),
        max_size=5,
    )
)
def test_grids_survive_their_frame(grids):
    decoded = decode_grids(encode_grids(grids))
    assert len(decoded) == len(grids) and all(map(np.array_equal, decoded, grids))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_data_survives_json(value):
    again = untag(json.loads(json.dumps(tag(value))))
    assert again == value and type(again) is type(value)


def test_what_is_not_plain_does_not_pass():
    with pytest.raises(NotPlain, match="type object is not plain data"):
        tag([object()])
    assert untag({"$": "os.system", "v": "true"}) == b"true"


# The filter ------------------------------------------------------------------------------------------------


def decided(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would decide: an interpreter of the few BPF instructions that the filter uses."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(arguments + (0,) * 6)[:6])
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator = position = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == seccomp.LOAD:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif code == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.JUMP_EQUAL: accumulator == operand,
                seccomp.JUMP_ANY_BIT: bool(accumulator & operand),
                seccomp.JUMP_GREATER_EQUAL: accumulator >= operand,
            }[code]
            position += if_true if holds else if_false


# First arguments that are about this process, and about another one.
PID, CLOCK = (0, 4711), (3, (~4711 << 3 | 2) & 0xFFFFFFFF)
OTHERS = {"sched_getaffinity": PID, "clock_gettime": CLOCK, "clock_getres": CLOCK, "clock_nanosleep": CLOCK}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_listed_and_nothing_else(machine):
    arch, numbers = seccomp.MACHINES[machine]
    program = seccomp.filter_bytes(machine)
    denied = seccomp.ERRNO | errno.EPERM
    special = {numbers[name] for name in ("mmap", "mprotect", *OTHERS)}
    for number in range(600):
        expected = seccomp.ALLOW_CALL if number in set(numbers.values()) - special else denied
        if number not in special:
            assert decided(program, arch, number) == expected, number
    for name in ("mmap", "mprotect"):
        assert decided(program, arch, numbers[name], (0, 0, 3)) == seccomp.ALLOW_CALL
        assert decided(program, arch, numbers[name], (0, 0, 7)) == denied
    for name, (own, other) in OTHERS.items():
        assert decided(program, arch, numbers[name], (own,)) == seccomp.ALLOW_CALL, name
        assert decided(program, arch, numbers[name], (other,)) == denied, name
    assert decided(program, arch ^ 1, numbers["read"]) == seccomp.KILL_PROCESS
    if machine == "x86_64":
        assert decided(program, arch, seccomp.X32_BIT | numbers["read"]) == seccomp.KILL_PROCESS


def test_numbers_agree_with_the_kernel_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("kernel headers are not installed")
    defined = dict(
        line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_")
    )
    assert {name: int(defined[f"__NR_{name}"]) for name in seccomp.X86_64} == seccomp.X86_64


# Kills -----------------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """Processes below a process, all generations."""
    below = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                below += [int(entry.name), *children_of(int(entry.name))]
    return below


def wait_until(condition, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


SLOW = "def transform(g):\n    x = 0\n    for i in range({}): x += i\n    return g\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lane_that_is_lost_is_replaced_and_nothing_is_lost(number):
    sources = [SLOW.format(200_000) + f"# {index}\n" for index in range(40)]
    with LanePool(STRICT, Limits(), 2) as pool:
        lost = pool.lanes[0].pid
        done = []
        programs = [Program(JobKind.GRID, source, encode_grids([GRID])) for source in sources]
        for index, endings in pool.run(programs):
            done.append(index)
            assert outcome_of(programs[index], endings, pool.limits).error_class is None
            if len(done) == 5:
                os.kill(lost, number)
        assert sorted(done) == list(range(40)) and pool.num_restarts == 1
    wait_until(lambda: not Path(f"/proc/{lost}").exists())


def test_a_killed_child_is_run_again(pool):
    with LanePool(STRICT, Limits(cpu_seconds=5.0, wall_seconds=60.0), 1) as one:
        program = Program(JobKind.GRID, SLOW.format(10_000_000), encode_grids([GRID]))
        import threading

        def kill_once() -> None:
            wait_until(lambda: bool(children_of(one.lanes[0].pid)))
            time.sleep(0.05)
            os.kill(children_of(one.lanes[0].pid)[0], signal.SIGKILL)

        killer = threading.Thread(target=kill_once)
        killer.start()
        [(_index, endings)] = one.run([program])
        killer.join()
        assert outcome_of(program, endings, one.limits).error_class is None


def test_a_killed_scorer_leaves_no_process_and_resumes(tmp_path):
    warehouse = new_run(tmp_path / "run")
    texts = [
        fenced(SLOW.format(500_000 if part == 0 else 4_000_000) + f"# {part} {index}\n")
        for part in range(3)
        for index in range(4)
    ]
    add_rollout(warehouse, [("turn", text) for text in texts], part_size=4)
    command = [
        sys.executable,
        "-c",
        "from score.cli import score; score()",
        str(warehouse.root),
        "--cpu-seconds",
        "8",
    ]
    scorer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: bool(list(warehouse.root.glob("samples/**/*.parquet"))), 60)
    below = children_of(scorer.pid)
    assert below
    scorer.kill()
    scorer.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert not list(warehouse.root.glob("samples/**/manifest.json"))
    quick = [
        sys.executable,
        "-c",
        "from score.cli import score; score()",
        str(warehouse.root),
        "--cpu-seconds",
        "8",
    ]
    assert subprocess.run(quick, capture_output=True, timeout=300).returncode == 0
    rows = warehouse.read(
        "samples", iteration=0, purpose="train", scorer=warehouse.state.scorers(0, "train")[0]
    ).to_pylist()
    assert [row["sample_index"] for row in rows] == list(range(12))


def test_a_second_scoring_gives_the_same_rows_but_for_times(tmp_path):
    texts = [
        fenced(FLIP),
        "nothing",
        fenced("import random\ndef transform(g):\n    return [[random.randint(0, 9)]]\n"),
        fenced("def transform(g):\n    return list({'b', 'a', 'c'})\n"),
        fenced("def transform(g):\n    return g / 0\n"),
    ]
    seen = []
    for name in ("first", "second"):
        warehouse = new_run(tmp_path / name)
        add_rollout(warehouse, [("turn", text) for text in texts])
        from click.testing import CliRunner

        from score.cli import score

        assert CliRunner().invoke(score, [str(warehouse.root)]).exit_code == 0
        rows = warehouse.read(
            "samples", iteration=0, purpose="train", scorer=warehouse.state.scorers(0, "train")[0]
        ).to_pylist()
        seen.append(
            [
                {
                    key: value
                    for key, value in row.items()
                    if not key.endswith("seconds") and key != "max_rss_mib"
                }
                for row in rows
            ]
        )
    assert seen[0] == seen[1]


def test_lanes_stay_flat_over_many_programs():
    """A short soak; `benchmarks/score_soak.py` is the long one."""
    rng = random.Random(0)
    hostile = [
        "def transform(g):\n    return np.ones(1 << 40)\n",
        "import os\ndef transform(g):\n    os._exit(1)\n",
        "import ctypes\ndef transform(g):\n    ctypes.string_at(0)\n",
        "def transform(g):\n    raise ValueError('x' * 10**6)\n",
    ]
    sources = [
        f"# {index}\n" + (rng.choice(hostile) if rng.random() < 0.05 else FLIP) for index in range(600)
    ]
    with LanePool(STRICT, Limits(memory_mib=128), 1) as pool:
        outcomes_of(pool, sources[:100])
        before = (resident(pool.lanes[0].pid), len(os.listdir("/proc/self/fd")))
        outcomes_of(pool, sources[100:])
        after = (resident(pool.lanes[0].pid), len(os.listdir("/proc/self/fd")))
        assert children_of(pool.lanes[0].pid) == []
    assert after[1] == before[1] and after[0] - before[0] < 1024


def resident(pid: int) -> int:
    """Resident memory of a process, KiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_lanes_that_died_while_idle_cost_no_program(num_lanes: int) -> None:
    programs = [Program(JobKind.GRID, FLIP + f"# {number}\n", encode_grids([GRID])) for number in range(4)]
    with LanePool(STRICT, Limits(), num_lanes) as pool:
        for lane in pool.lanes:
            os.kill(lane.pid, signal.SIGKILL)
            lane.process.wait()
        found = dict(pool.run(programs))
    assert sorted(found) == [0, 1, 2, 3] and all(found.values())
