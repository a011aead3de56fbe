"""Two rooms with a command each, as scripts that can be typed, and a server of them like `warehouse warm`."""

import os
import subprocess
import sys
from pathlib import Path

from warehouse.stages import warm

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
        time.sleep(0.05)
        raise warm.NewProcess("It cannot be done here.")
    elif what == "anew" and not word:
        print("anew", os.getpid(), len(runs), sys.stdin.read(), warm.spent >= 0.05)
    elif what == "touch":
        warm.sound = False
        raise StageError("It broke.")
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


def make_rooms(tmp_path: Path) -> Path:
    """The folder, with all of it."""
    for module, name, stays in (("fork_room", "forked", False), ("stay_room", "staying", True)):
        (tmp_path / f"{module}.py").write_text(ROOM.format(name=name, stays=stays))
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {name}\n{name}()\n")
        script.chmod(0o755)
    (tmp_path / "serve.py").write_text(SERVER)
    return tmp_path


def start(folder: Path, script: str, **variables: str) -> subprocess.Popen[str]:
    """Start it without variables that assign a GPU or a rank: vLLM leaves one where it has run before."""
    unwanted = {warm.VARIABLE, *warm.PLACE}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{folder}"} | variables
    return subprocess.Popen([sys.executable, str(folder / "serve.py"), "bash", "-c", script], env=environment,
                            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def run(folder: Path, script: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a script whose commands are handed over."""
    process = start(folder, script, **variables)
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors
