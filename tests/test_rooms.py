"""The layout of the rooms: who imports whom, and what `--help` costs."""

from __future__ import annotations

import ast
import functools
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("rollout", "score", "train", "warehouse", "reports")
COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
HEAVY = ("torch", "vllm", "transformers", "peft", "accelerate", "pyarrow", "duckdb", "polars", "numpy",
         "tqdm", "starlette", "uvicorn", "jinja2")
# The door to each heavy library: the only files of the rooms that import it.
DOORS = {"vllm": ("rollout/engines/vllm_engine.py",), "duckdb": ("warehouse/sql/database.py",),
         "obstore": ("warehouse/objects/bucket.py",),
         "transformers": ("train/model/loading.py", "train/model/policy.py", "train/model/prompt_cache.py",
                          "train/model/saving.py", "train/model/tiny_copy.py",
                          "rollout/prompts/prompt_encoder.py"),
         "starlette": ("reports/viewer/app.py",), "uvicorn": ("reports/viewer/serve.py",),
         "aiohttp": ("rollout/endpoint/server.py",),
         "accelerate": ("train/steps/accelerator.py",)}


@functools.cache
def imports(path: Path, *, whole: bool = False, hints: bool = False) -> set[str]:
    """Modules that a file imports anywhere in it; those that only annotations need with `hints` alone.

    Their first names; with `whole` all of the name, and each name that is taken from a module behind it.
    """
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not hints:
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names if whole else {name.split(".")[0] for name in names}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_itself_and_the_warehouse_alone(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        others = imports(path) & set(ROOMS) - {room, "warehouse"}
        assert not others, f"{path} imports {others}"


# What each sub-room may import of its own room beside itself; `.` is the room's face, whose options and
# settings are plain declarations. docs/design.md says each room's rule in words.
MAY_IMPORT = {
    "score": {"score.inspect", "score.rewards", "score.sandbox", "score.tasks", "score.judging",
              "score.protocol", "score.isolation"},
    "score.inspect": {"score", "score.isolation", "score.rewards", "score.sandbox", "score.tasks",
                      "score.judging", "score.protocol"},
    "score.judging": {"score.rewards", "score.sandbox", "score.tasks", "score.protocol"},
    "score.rewards": {"score.sandbox", "score.tasks"},
    "score.tasks": {"score.sandbox", "score.protocol"},
    "score.sandbox": {"score.isolation", "score.protocol"},
    "score.graders": set(),
    "score.lane": {"score.jobs", "score.isolation", "score.protocol"},
    "score.jobs": {"score.isolation", "score.protocol"},
    "score.isolation": set(),
    "score.protocol": set(),
    "warehouse": {"warehouse.maintain", "warehouse.inspect", "warehouse.objects", "warehouse.sources",
                  "warehouse.sql", "warehouse.stages", "warehouse.store", "warehouse.tasks",
                  "warehouse.transfer", "warehouse.ledger", "warehouse.loop", "warehouse.experiments",
                  "warehouse.start"},
    "warehouse.start": {"warehouse", "warehouse.stages", "warehouse.store"},
    "warehouse.loop": {"warehouse", "warehouse.inspect", "warehouse.maintain", "warehouse.sql",
                       "warehouse.stages", "warehouse.store"},
    "warehouse.experiments": {"warehouse", "warehouse.inspect", "warehouse.ledger", "warehouse.loop",
                              "warehouse.maintain", "warehouse.objects", "warehouse.sql", "warehouse.stages",
                              "warehouse.store"},
    "warehouse.ledger": {"warehouse.store"},
    "warehouse.sources": {"warehouse.stages", "warehouse.store", "warehouse.tasks"},
    "warehouse.inspect": {"warehouse", "warehouse.sql", "warehouse.stages", "warehouse.store",
                          "warehouse.ledger", "warehouse.tasks"},
    "warehouse.maintain": {"warehouse", "warehouse.inspect", "warehouse.sources", "warehouse.sql",
                           "warehouse.stages", "warehouse.store", "warehouse.tasks", "warehouse.ledger"},
    "warehouse.transfer": {"warehouse", "warehouse.objects", "warehouse.sql", "warehouse.stages",
                           "warehouse.store", "warehouse.tasks", "warehouse.ledger"},
    "warehouse.sql": {"warehouse.ledger", "warehouse.store", "warehouse.tasks"},
    "warehouse.stages": {"warehouse.ledger", "warehouse.store"},
    "warehouse.tasks": {"warehouse.store"},
    "warehouse.objects": {"warehouse.ledger", "warehouse.store"},
    "warehouse.store": {"warehouse.ledger", "warehouse.objects"},
    "rollout": {"rollout.endpoint", "rollout.engines", "rollout.prompts"},
    "rollout.endpoint": {"rollout.engines", "rollout.prompts"},
    "rollout.engines": {"rollout", "rollout.prompts"},
    "rollout.prompts": {"rollout"},
    "reports": {"reports.viewer"},
    "reports.viewer": {"reports"},
    "train": {"train.model", "train.objective", "train.inputs", "train.steps"},
    "train.steps": {"train.model", "train.objective", "train.inputs"},
    "train.model": set(),
    "train.inputs": {"train.objective"},
    "train.objective": set(),
}
# Rooms whose files may import nothing but the standard library and what stands here.
BARE = {"score.isolation": {"score"}, "score.protocol": {"score", "numpy"},
        "score.lane": {"score", "numpy"}, "score.jobs": {"score", "numpy"},
        "train.inputs": {"train", "warehouse", "numpy", "pyarrow"}}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the rooms by its dotted name; packages by the name of their folder."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
            for path in files}


@functools.cache
def edges(*, hints: bool = False) -> dict[str, set[str]]:
    """Which module imports which, of those in the rooms; with `hints` for annotations, too."""
    known, arrows = modules(), {}
    for name, path in known.items():
        arrows[name] = set()
        for wanted in imports(path, whole=True, hints=hints):
            while wanted and wanted not in known:
                wanted = wanted.rpartition(".")[0]
            if wanted and wanted != name:
                arrows[name].add(wanted)
    return arrows


def room_of(module: str) -> str:
    """The folder that a module lies in, dotted."""
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def test_sub_rooms_import_what_their_rule_allows() -> None:
    wrong = []
    for module, wanted in edges().items():
        room = room_of(module)
        for other in (room_of(name) for name in wanted):
            inside = other.partition(".")[0] == room.partition(".")[0] and room in MAY_IMPORT
            if inside and other != room and other not in MAY_IMPORT[room]:
                wrong.append(f"{module} imports {other}")
    assert not wrong
    folders = {room_of(module) for module in modules()} - {"warehouse.sql.texts"}
    assert folders == set(MAY_IMPORT), "a folder without a rule"


def test_no_module_imports_itself_in_a_circle() -> None:
    arrows = {name: {other for other in wanted if modules()[other].name != "__init__.py"}
              for name, wanted in edges(hints=True).items()}
    while leaves := {name for name, wanted in arrows.items() if not wanted & arrows.keys()}:
        arrows = {name: wanted for name, wanted in arrows.items() if name not in leaves}
    assert not arrows


@pytest.mark.parametrize("room", BARE)
def test_bare_rooms_import_no_library(room: str) -> None:
    for path in (ROOT / room.replace(".", "/")).glob("*.py"):
        foreign = imports(path) - set(sys.stdlib_module_names) - BARE[room]
        assert not foreign, f"{path} imports {foreign}"


def test_every_sub_room_says_its_rule_and_holds_about_ten_files() -> None:
    for room in set(MAY_IMPORT) - {"rollout", "score", "warehouse", "train", "reports"}:
        folder = ROOT / room.replace(".", "/")
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{folder} has no rule"
        assert len(list(folder.glob("*.py"))) <= 14, f"{folder} holds too many files"


# Modules outside the ledger and the store that list folders, and what for. None decides by it what the run
# is: that is asked of the state (`RunState`), and files of the store (`Warehouse.parts`, `Stage.written`).
LISTS = {
    "warehouse.maintain": "compares and changes the stored files",
    "warehouse.objects": "copies files between a folder and a store",
    "warehouse.sql.inventory": "names the files of every table to DuckDB",
    "warehouse.sql.rollup": "its own files below iterations/", "warehouse.sql.rollup_files": "the same",
    "warehouse.stages.space": "removes temporary files", "warehouse.stages.warm_server": "dead sockets",
    "warehouse.stages.base_model": "a model's folder", "warehouse.sources": "files of data sets",
    "warehouse.experiments.branch": "shares the files",
    "warehouse.loop.devices": "GPUs of the machine",
    "warehouse.experiments.plan": "what each arm was made with",
    "train.model.saving": "a model's folder", "train.export": "the folder to write",
    "train.steps.checkpoint": "its own checkpoints", "train.inputs.inputs": "checkpoints to remove",
    "rollout.engines.merged": "a model's folder",
    "score.isolation.lockdown": "what a program sees",
    "score.tasks.graded": "a package's own code", "score.rewards.verdict_version": "our own code",
}
LISTING = {"glob", "rglob", "iterdir", "listdir", "scandir", "walk", "file_names"}
MANIFESTS = {"read_manifest", "readable_manifest"}
READS = ("warehouse.objects", "warehouse.sql.inventory", "warehouse.experiments.branch")     # manifests, too


def asked_of_files(path: Path) -> set[str]:
    """Calls of a file that list a folder or read a manifest, and manifests that it names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            module = node.func.value if isinstance(node.func, ast.Attribute) else None
            if called in LISTING | MANIFESTS | {"manifest"} and ast.unparse(module or node) != "ast":
                found.add(called)
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names} & MANIFESTS
        if isinstance(node, ast.Constant) and node.value in ("manifest.json", "settings.json"):
            found.add(node.value)
    return found


def test_the_state_says_what_a_run_is_and_no_other_room_reads_it_from_files() -> None:
    wrong, listing = {}, set()
    for name, path in modules().items():
        if name.startswith(("warehouse.ledger", "warehouse.store")) or not (asked := asked_of_files(path)):
            continue
        allowed = next((known for known in LISTS if f"{name}.".startswith(f"{known}.")), None)
        listing.add(allowed)
        if allowed is None or (asked - LISTING and not name.startswith(("warehouse.maintain", *READS))):
            wrong[name] = asked
    assert not wrong
    assert listing == set(LISTS), "a module that lists nothing any more"


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
    assert not re.search(r"[^\]]\.\.\.$", done.stdout, re.MULTILINE), "a command whose sentence is cut off"
    # CPU time: other work on the machine is not the command's fault.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
