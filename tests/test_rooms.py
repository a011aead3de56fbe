"""The layout of the rooms: who imports whom, and what `--help` costs."""

from __future__ import annotations

import ast
import functools
import importlib
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
         "starlette", "uvicorn", "jinja2")
# The door to each heavy library: the only files of the rooms that import it.
DOORS = {"vllm": ("rollout/engines/vllm_engine.py",), "duckdb": ("warehouse/sql/database.py",),
         "obstore": ("warehouse/objects/bucket.py",),
         "transformers": ("train/model/loading.py", "train/model/policy.py", "train/model/prompt_cache.py",
                          "train/model/saving.py", "train/model/tiny_copy.py",
                          "rollout/endpoint/tokenizer.py"),
         "starlette": ("reports/viewer/app.py",), "uvicorn": ("reports/viewer/serve.py",),
         "aiohttp": ("rollout/endpoint/server.py",),
         "accelerate": ("train/steps/accelerator.py",)}


@functools.cache
def imports(path: Path, *, whole: bool = False) -> set[str]:
    """Modules that a file imports anywhere in it, but for those that only annotations need.

    Their first names; with `whole` all of the name, and each name that is taken from a module behind it.
    """
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
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
    "score.inspect": {"score.isolation", "score.rewards", "score.sandbox", "score.tasks", "score.judging",
                   "score.protocol"},
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
    "warehouse.sources": {"warehouse.store", "warehouse.tasks"},
    "warehouse.inspect": {"warehouse", "warehouse.sql", "warehouse.stages", "warehouse.store",
                          "warehouse.ledger", "warehouse.tasks"},
    "warehouse.maintain": {"warehouse", "warehouse.sources", "warehouse.sql", "warehouse.stages",
                       "warehouse.store", "warehouse.tasks", "warehouse.ledger"},
    "warehouse.transfer": {"warehouse", "warehouse.objects", "warehouse.sql", "warehouse.stages",
                           "warehouse.store", "warehouse.tasks", "warehouse.ledger"},
    "warehouse.sql": {"warehouse.ledger", "warehouse.store"},
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
def edges() -> dict[str, set[str]]:
    """Which module imports which, of those in the rooms."""
    known, arrows = modules(), {}
    for name, path in known.items():
        arrows[name] = set()
        for wanted in imports(path, whole=True):
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
              for name, wanted in edges().items()}
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
        assert len(list(folder.glob("*.py"))) <= 13, f"{folder} holds too many files"


def options_read(room: str, kind: str, held_as: str) -> set[str]:
    """Names of options that a room reads: of parameters annotated `kind`, and of attributes `held_as`."""
    names = set()
    for path in (ROOT / room).rglob("*.py"):
        for function in (node for node in ast.walk(ast.parse(path.read_text()))
                         if isinstance(node, ast.FunctionDef)):
            given = {argument.arg for argument in [*function.args.args, *function.args.kwonlyargs]
                     if argument.annotation and ast.unparse(argument.annotation) == kind}
            names |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute) and (
                (isinstance(node.value, ast.Name) and node.value.id in given)
                or (isinstance(node.value, ast.Attribute) and node.value.attr == held_as))}
    return names


@pytest.mark.parametrize(("room", "kind", "held_as"), [
    ("rollout", "RolloutOptions", "options"), ("train", "Settings", "settings")])
def test_a_stage_reads_options_that_its_command_declares(room: str, kind: str, held_as: str) -> None:
    """The type checker cannot tell: options are named where the command line declares them, and not again."""
    module, _, name = COMMANDS[room].partition(":")
    declared = {parameter.name for parameter in getattr(importlib.import_module(module), name).params}
    methods = {"sampling", "replace", "results", "fill_in", "keys"}
    read = options_read(room, kind, held_as)
    assert len(read) > 30 and read <= declared | methods


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
