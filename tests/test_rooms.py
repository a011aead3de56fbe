"""The layout of the rooms: who imports whom, and what `--help` costs."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("rollout", "score", "train", "warehouse", "reports")
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
HEAVY = ("torch", "vllm", "transformers", "peft", "accelerate", "pyarrow", "duckdb", "polars", "numpy")
# The door to each heavy library: the only files of the rooms that import it.
DOORS = {"vllm": ("rollout/vllm_engine.py",), "duckdb": ("warehouse/sql/database.py",),
         "transformers": ("train/model/policy.py", "train/model/saving.py"),
         "accelerate": ("train/update/accelerator.py",)}


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it, but for those that only annotations need."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return {name.split(".")[0] for name in found}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_itself_and_the_warehouse_alone(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        others = imports(path) & set(ROOMS) - {room, "warehouse"}
        assert not others, f"{path} imports {others}"


@pytest.mark.parametrize("library", DOORS)
def test_a_heavy_library_has_one_door(library: str) -> None:
    users = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")
             if library in imports(path)}
    assert users <= set(DOORS[library])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_no_heavy_library_and_answers_at_once(command: str) -> None:
    module, _, name = COMMANDS[command].partition(":")
    code = (f"import sys; from {module} import {name}\n"
            f"try: {name}(['--help'])\n"
            f"except SystemExit: print([one for one in {HEAVY} if one in sys.modules], file=sys.stderr)")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr.strip() == "[]"
    assert "Usage:" in done.stdout
    # CPU time: other work on the machine is not the command's fault.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
