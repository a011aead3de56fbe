"""`warehouse warm`: signals reach who runs the command, and no process or file is left behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warehouse.stages.warm_rooms import ROOT, run, start


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_signal_reaches_the_process_that_was_asked_last(folder: Path) -> None:
    code, output, _ = run(folder, """
        staying process; staying anew there <&0 & while [ ! -s there ]; do sleep 0.02; done
        kill -TERM $!; wait $!; echo $?; staying process""")
    assert code == 0 and output.splitlines()[1] == "143" and output.split()[-1] == "True"


def test_a_process_cleans_up_after_its_own_command_and_for_nobody_else(folder: Path) -> None:
    """vLLM leaves a file in the folder of temporary files where the end of its process is not told to it."""
    code, output, _ = run(folder, "forked tidy 1; staying tidy 2; staying exit 3; staying tidy 3")
    assert code == 0 and output == "" and (folder / "server").read_text() == "once "
    assert all((folder / name).exists() for name in "123")


def test_a_process_that_stays_cleans_up_although_others_are_left(folder: Path) -> None:
    """They are forks that were made later, and hold all that was open then."""
    code, _, _ = run(folder, "staying tidy kept; forked wait there & while [ ! -s there ]; do sleep 1; done")
    assert code == 0 and (folder / "kept").exists()


@pytest.mark.parametrize("tool", ["forked", "staying"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_command_ends_the_process_that_runs_it(folder: Path, tool: str,
                                                               number: signal.Signals) -> None:
    code, output, _ = run(folder, f"""
        set -m; {tool} wait there & while [ ! -s there ]; do sleep 0.02; done
        kill -{number.value} $!; wait $!; echo $?
        job=/proc/$(cat there)/stat
        while [ -e $job ] && ! grep -q ") Z" $job; do sleep 0.02; done; {tool} say on </dev/null""")
    ends = {signal.SIGTERM: 143, signal.SIGINT: 1, signal.SIGKILL: 137}     # click turns Ctrl-C into 1
    assert code == 0 and output.splitlines() == [str(ends[number]), f"on {folder} "]


@pytest.mark.parametrize("tool", ["forked", "staying"])
@pytest.mark.parametrize(("number", "ends", "sentence"), [
    (signal.SIGILL, 1, "crashed: Illegal instruction. "), (signal.SIGKILL, 137, "was killed. ")])
def test_a_crash_of_the_process_that_runs_a_command_is_told_from_its_kill(
        folder: Path, tool: str, number: signal.Signals, ends: int, sentence: str) -> None:
    code, output, errors = run(folder, f"""
        {tool} wait there & while [ ! -s there ]; do sleep 0.02; done
        kill -{number.value} $(cat there); wait $!; echo $?""")
    assert code == 0 and output == f"{ends}\n"
    assert f"Error: The process that ran this command {sentence}Its written output is kept" in errors


@pytest.mark.parametrize("tool", ["forked", "staying"])
def test_nothing_survives_when_the_server_is_killed(folder: Path, place: Path, tool: str) -> None:
    """Nor does its folder, once there is another server."""
    end = time.monotonic() + 600
    with start(folder, f"{tool} wait there", TMPDIR=str(place)) as process:
        while not (folder / "there").exists() or not (folder / "there").read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        job = int((folder / "there").read_text())
        process.kill()
    while is_running(job):
        assert time.monotonic() < end
        time.sleep(0.02)
    _, output, _ = run(folder, f"{sys.executable} serve.py true; ls $TMPDIR/*/*; echo $ROLLHOUSE_WARM",
                       TMPDIR=str(place))
    here, own = output.splitlines()
    assert here == own and not list(place.iterdir())


BEGINS = """
import socket, sys, tempfile
from warehouse.stages import warm_server
class Socket(socket.socket):
    def listen(self):
        warm_server.sweep(tempfile.gettempdir())        # by another server, which begins just now
        super().listen()
socket.socket, warm_server.load_rooms = Socket, dict
sys.exit(warm_server.run_warm(["bash", "-c", "ls $ROLLHOUSE_WARM $TMPDIR/rollhouse-warm-*/*"]))
"""


def test_a_server_that_begins_leaves_others_their_folders(place: Path) -> None:
    """Of one that does not listen yet, and of one of another machine that has the same temporary folder."""
    (place / "begins.py").write_text(BEGINS)
    elsewhere = place / "rollhouse-warm-elsewhere" / "0"
    elsewhere.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(elsewhere))
    done = subprocess.run([sys.executable, str(place / "begins.py")], capture_output=True, text=True,
                          env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and str(elsewhere) in done.stdout.splitlines(), done.stderr


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


GOES = """
import json, os, socket, sys
from warehouse.stages import warm
for tool in ("forked", "staying", "unknown"):
    for folder, end in ((sys.argv[1], None), (sys.argv[1], -5), ("/not/there", None)):
        for _ in range(5):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(os.environ["ROLLHOUSE_WARM"])
                asked = json.dumps([tool, ["process"], folder, 0.0, warm.environment(warm.began_with),
                                    warm.limits()]).encode()
                socket.send_fds(line, [warm.number(len(asked))], [0, 1, 2])
                line.sendall(asked[:end])
"""


def test_commands_that_are_killed_while_they_ask_leave_the_server_as_it_is(folder: Path) -> None:
    (folder / "goes.py").write_text(GOES)
    code, output, _ = run(folder, f"""
        x=$({sys.executable} goes.py $PWD 2>/dev/null); x=$(staying process); echo $x; ls $ROLLHOUSE_WARM""")
    assert code == 0 and output.split()[2] == "True"


DIES = """
import json, os, signal, socket, sys
from warehouse.stages import warm
os.kill(int(sys.argv[1]), signal.SIGSTOP)
lines = []
for tool in ("staying", "unknown"):        # that the second is answered says that the first was handed on
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["ROLLHOUSE_WARM"])
    asked = [tool, ["process"], ".", 0.0, {}, warm.environment(warm.began_with), warm.limits()]
    asked = json.dumps(asked).encode()
    socket.send_fds(line, [warm.number(len(asked))], [0, 1, 2])
    line.sendall(asked)
    lines.append(line)
assert warm.read_number(lines[1]) == warm.COLD
os.kill(int(sys.argv[1]), signal.SIGKILL)
try:
    while "Z" not in open(f"/proc/{sys.argv[1]}/stat").read().rpartition(")")[2]:
        pass                               # until it has ended: before, the server cannot know
except OSError:                            # and somebody has waited for it
    pass
"""


@pytest.mark.parametrize("then", ["staying process; staying process", ""])
def test_a_process_that_stays_and_is_killed_before_it_reads_is_replaced(folder: Path, then: str) -> None:
    (folder / "dies.py").write_text(DIES)
    code, output, errors = run(folder, f"{sys.executable} dies.py $(staying process); {then}")
    assert code == 0 and not errors
    assert [line.split()[2] for line in output.splitlines()] == ["True"] * then.count("staying")


def test_a_process_that_stays_and_is_killed_while_it_waits_is_replaced(folder: Path) -> None:
    code, output, errors = run(folder, """
        stat=/proc/$(staying process | tee first | cut -d " " -f 1)/stat; kill -9 $(cut -d " " -f 1 first)
        while [ -e $stat ] && ! grep -q ") Z" $stat; do sleep 0.02; done; staying process""")
    assert code == 0 and not errors and output.split()[1:] == ["1", "True"]
