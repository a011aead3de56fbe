"""`warehouse warm`: commands run in forks as they run by themselves, and no process is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOM = """
import os, pathlib, sys, time, weakref
import click
from warehouse.options import shows_errors
from warehouse.stages import warm
from warehouse.store.errors import StageError
STAYS = {stays}
runs = []

@click.command()
@click.argument("what")
@click.argument("word", default="")
@shows_errors
def {name}(what, word):
    runs.append(what)
    if what == "say":
        print(word, os.getcwd(), sys.stdin.read())
        print("complaint", file=sys.stderr)
    elif what == "process":
        print(os.getpid(), len(runs), warm.stays)
    elif what == "exit":
        sys.exit(int(word))
    elif what == "fail":
        raise StageError(word or "It cannot be done.")
    elif what == "anew" and len(runs) > 1:
        raise warm.NewProcess("It cannot be done here.")
    elif what == "anew" and not word:
        print("anew", os.getpid(), len(runs), sys.stdin.read())
    elif what == "crash":
        1 // 0
    elif what == "leave":
        warm.stays = False
    elif what == "tidy":
        weakref.finalize({name}, pathlib.Path(word).touch)
    elif what in ("wait", "anew"):
        open(word, "w").write(str(os.getpid()))
        time.sleep(1000)
"""
SERVER = """
import sys, weakref
import fork_room, stay_room
weakref.finalize(sys, open("server", "w").write, "once ")
from warehouse.stages import warm_server
warm_server.load_rooms = lambda: {"forked": fork_room.forked, "staying": stay_room.staying}
sys.exit(warm_server.run_warm(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rooms, commands of theirs that can be typed, and a server of them."""
    for module, name, stays in (("fork_room", "forked", False), ("stay_room", "staying", True)):
        (tmp_path / f"{module}.py").write_text(ROOM.format(name=name, stays=stays))
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {name}\n{name}()\n")
        script.chmod(0o755)
    (tmp_path / "serve.py").write_text(SERVER)
    return tmp_path


def start(folder: Path, script: str, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{folder}"}
    environment |= variables
    environment.pop("ROLLHOUSE_WARM", None)
    return subprocess.Popen([sys.executable, str(folder / "serve.py"), "bash", "-c", script], env=environment,
                            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def run(folder: Path, script: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a script whose commands are handed over."""
    process = start(folder, script, **variables)
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def test_a_command_has_its_words_folder_streams_and_exit_code(folder: Path) -> None:
    code, output, errors = run(folder, """
        mkdir deeper; cd deeper
        echo input | forked say hello
        echo input | forked say kept 2>&1 | tr a-z A-Z
        for tool in forked staying; do
          $tool exit 7; echo $?
          $tool fail; echo $?
          $tool crash 2>/dev/null; echo $?
          $tool nonsense --strange 2>/dev/null; echo $?
        done
        exit 5""")
    assert code == 5
    lines = output.splitlines()
    assert lines[0] == f"hello {folder}/deeper input"
    assert {f"kept {folder}/deeper input".upper(), "COMPLAINT"} <= set(lines[1:6])
    assert [line for line in lines if line.isdigit()] == ["7", "1", "1", "2"] * 2
    assert errors == "complaint\nError: It cannot be done.\nError: It cannot be done.\n"


def test_one_process_stays_for_its_command_and_a_new_one_follows_a_failure(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying process; staying exit 3; staying process; "
                                  "forked process; forked process")
    rows = [line.split() for line in output.splitlines()]
    assert code == 0 and len(rows) == 5
    kept, again, anew, fork, other = rows
    assert kept[0] == again[0] and [kept[1], again[1]] == ["1", "2"] and kept[2] == "True"
    assert anew[0] != kept[0] and anew[1] == "1"
    assert fork[0] != other[0] and fork[1] == other[1] == "1" and fork[2] == "False"


def test_a_command_that_needs_a_new_process_gets_one(folder: Path) -> None:
    code, output, errors = run(folder, "staying process; echo kept | staying anew; echo $?; staying process")
    first, anew, empty, done, again = (line.split() for line in output.splitlines())
    assert code == 0 and done == ["0"] and errors == "It cannot be done here.\n"
    assert anew[1] != first[0] and anew[2:] == ["1", "kept"] and not empty
    assert again == [anew[1], "2", "True"]          # it stays in its turn


def test_a_process_that_says_so_ends_with_its_command(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying leave; echo $?; staying process")
    first, done, again = (line.split() for line in output.splitlines())
    assert code == 0 and done == ["0"] and first[0] != again[0] and again[1:] == ["1", "True"]


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


def test_two_at_once_do_not_wait_for_each_other(folder: Path) -> None:
    code, output, _ = run(folder, "staying wait there & while [ ! -s there ]; do sleep 0.02; done; "
                                  "staying process; kill %1")
    assert code == 0 and output.split()[1:] == ["1", "False"]


def test_a_command_with_another_environment_runs_by_itself(folder: Path) -> None:
    _, output, errors = run(folder, "staying process; OMP_NUM_THREADS=1 staying process; staying process; "
                                    "OMP_NUM_THREADS=2 forked process; OMP_NUM_THREADS=2 N=1 forked process")
    assert errors.splitlines() == [
        "staying imports by itself, as whatever has OMP_NUM_THREADS otherwise than `warehouse warm`.",
        "forked imports by itself, as whatever has N, OMP_NUM_THREADS otherwise than `warehouse warm`."]
    output = "\n".join(output.splitlines()[:3])
    first, changed, again = (line.split() for line in output.splitlines())
    assert [first[2], changed[2], again[2]] == ["True", "False", "True"] and again[1] == "2"


@pytest.mark.parametrize("changed", ["ulimit -n 128", "umask 077", "renice -n 19 $BASHPID >&2"])
def test_a_command_with_other_limits_runs_by_itself(folder: Path, changed: str) -> None:
    _, output, _ = run(folder, f"staying process; ({changed}; staying process); staying process")
    assert [line.split()[2] for line in output.splitlines()] == ["True", "False", "True"]


def test_a_command_whose_streams_are_closed_runs_by_itself(folder: Path) -> None:
    code, output, _ = run(folder, "staying process; staying process <&-; forked say lost >&- </dev/null; "
                                  "echo on")
    assert code == 0 and [line.split()[-1] for line in output.splitlines()] == ["True", "False", "on"]


@pytest.mark.parametrize("tool", ["forked", "staying"])
def test_a_command_whose_output_cannot_be_written_was_not_killed(folder: Path, tool: str) -> None:
    code, output, errors = run(folder, f"""
        {tool} say lost </dev/null >/dev/full; echo $?
        {tool} say kept </dev/null 2>/dev/full; echo $?
        {tool} process | exit; echo ${{PIPESTATUS[0]}}; {tool} process""", PYTHONUNBUFFERED="")
    assert code == 0 and errors == "complaint\n"
    lines = output.splitlines()
    assert lines[:3] == ["120", f"kept {folder} ", "1"] and len(lines) == 5


def test_a_server_goes_on_where_it_cannot_say_why_a_command_imports_by_itself(folder: Path) -> None:
    code, output, _ = run(folder, f"""
        {sys.executable} serve.py bash -c "N=1 staying process 2>&1; staying process" 2>/dev/full""")
    assert code == 0 and [line.split()[2] for line in output.splitlines()] == ["False", "True"]


def test_a_server_within_another_runs_its_own_commands(folder: Path) -> None:
    code, output, errors = run(folder, f"""
        staying process; N=1 {sys.executable} serve.py bash -c "staying process; staying process"
        staying process""")
    first, inside, again, last = (line.split() for line in output.splitlines())
    assert code == 0 and not errors and first[0] == last[0] != inside[0] == again[0]
    assert [first[1], inside[1], again[1], last[1]] == ["1", "1", "2", "2"]


def test_errors_are_told_that_are_no_text(folder: Path) -> None:
    _, _, errors = run(folder, r"forked fail $'\xff'")
    assert errors == "Error: \\udcff\n"


def test_a_long_path_of_temporary_files_is_no_hindrance(folder: Path) -> None:
    (folder / ("d" * 120)).mkdir()
    code, output, _ = run(folder, "staying process", TMPDIR=str(folder / ("d" * 120)))
    assert code == 0 and output.split()[2] == "True"


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
def test_nothing_survives_when_the_server_is_killed(folder: Path, tool: str) -> None:
    """Nor does its folder, once there is another server."""
    end, place = time.monotonic() + 600, folder / "tmp"
    place.mkdir()
    with start(folder, f"{tool} wait there", TMPDIR=str(place)) as process:
        while not (folder / "there").exists() or not (folder / "there").read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        job = int((folder / "there").read_text())
        process.kill()
    while is_running(job):
        assert time.monotonic() < end
        time.sleep(0.02)
    _, output, _ = run(folder, f"{sys.executable} serve.py true; ls $TMPDIR/*/socket; echo $ROLLHOUSE_WARM",
                       TMPDIR=str(place))
    here, own = output.splitlines()
    assert here == own and not list(place.iterdir())


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
                asked = json.dumps([tool, ["process"], folder, warm.environment(warm.began_with),
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
    asked = json.dumps([tool, ["process"], ".", warm.environment(warm.began_with), warm.limits()]).encode()
    socket.send_fds(line, [warm.number(len(asked))], [0, 1, 2])
    line.sendall(asked)
    lines.append(line)
assert warm.read_number(lines[1]) == warm.COLD
os.kill(int(sys.argv[1]), signal.SIGKILL)
"""


@pytest.mark.parametrize("then", ["staying process; staying process", ""])
def test_a_process_that_stays_and_is_killed_before_it_reads_is_replaced(folder: Path, then: str) -> None:
    (folder / "dies.py").write_text(DIES)
    code, output, errors = run(folder, f"{sys.executable} dies.py $(staying process); {then}")
    assert code == 0 and not errors
    assert [line.split()[2] for line in output.splitlines()] == ["True"] * then.count("staying")
