"""Inputs: configs, options, files of tasks and of rollouts that nobody should write, answered in time."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from tests.building.runs import TURN
from tests.chaos.commands import COMMANDS
from tests.fuzz.damage import RAW, copy_of, mutate
from tests.fuzz.trials import ask, command_of
from warehouse.store.config_file import TABLES
from warehouse.store.run_folder import open_warehouse

WORDS = ("nan", "inf", "-inf", "-1", "0", "1", "3", "1e400", "0.5", "99999999999999999999", "2147483648",
         "9" * 5000, "", " ", "x" * 300, "../..", "train/../../up", "eval-", "\udcff", "é", "/", "0/0", "5/3",
         "a=nan", "a=1", "=", "SELECT 1", "SELECT", "[1]", "{folder}", "{binary}", "{empty}", "/dev/null",
         "arc-v1", "train", "true", "none", "auto", "synthetic:2", "@x", "-")
TOML = ("nan", "-inf", "true", "1", "-1", "0.5", "1e400", "9" * 5000, "99999999999999999999", '""', '"x"',
        '"\\ud800"', "[]", "[1, 2]", '["a", "b"]', "{a = 1}", "{}", "2026-01-05", "2026-01-05T12:00:00Z",
        "07:30:00", "[" * 2000 + "]" * 2000, "'''\n'''", "1 2", "", "'" + "x" * 500 + "'")
SOURCES = ("synthetic:{n}", "synthetic:{n}:{n}", "arc-agi-1:nothing", "{n}", "a={n}.json", "x=synthetic:3",
           "synthetic:3@{folder}", "synthetic:3@{binary}", "{folder}", "{binary}", "{folder}/x.json",
           "synthetic:3@{empty}", "../..=synthetic:2", "\udcff", "", "=", "@")
TASKS = (
    {"task_id": "a", "kind": "grid", "payload": TURN},
    {"task_id": "b", "kind": "answer", "messages": [{"role": "user", "content": "?"}],
     "payload": {"answer": "7", "match": "numeric"}},
    {"task_id": "c", "kind": "function", "messages": [{"role": "user", "content": "?"}],
     "payload": {"entry_point": "f", "calls": [{"args": [1], "expected": 2}]}},
    {"task_id": "d", "kind": "stdio", "messages": [{"role": "user", "content": "?"}],
     "payload": {"cases": [{"input": "1", "output": "2"}], "compare": "tokens"}})
# Commands that say nothing of a run.
WAITING = ("schema", "doctor", "demo")


class Inputs:
    """Draws inputs for the commands of one run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        rows = open_warehouse(run).read("completions", iteration=0, purpose="train").to_pylist()[:3]
        prompts = {row["group_id"]: row for row in open_warehouse(run).read(
            "prompts", ["group_id", "prompt_ids"], iteration=0, purpose="train").to_pylist()}
        own = ("iteration", "group_id", "finished_at", "purpose")
        self.rows = [{**{key: value for key, value in row.items() if key not in own},
                      "prompt_ids": prompts[row["group_id"]]["prompt_ids"]} for row in rows]
        self.commands = [words for words in _commands() if words[-1] not in WAITING]

    def answer(self, draw: random.Random, folder: Path) -> list[str]:
        """Give one of the commands something to read; what was wrong with its answer."""
        folder.mkdir()
        run = copy_of(self.run, folder)
        (folder / "folder").mkdir()
        (folder / "binary").write_bytes(bytes(range(256)) * 9)
        (folder / "empty").write_bytes(b"")
        kinds = (self._config, self._option, self._option, self._tasks, self._source, self._rollouts)
        places = {"{run}": str(run), "{folder}": str(folder / "folder"), "{binary}": str(folder / "binary"),
                  "{empty}": str(folder / "empty")}
        words = []
        for word in draw.choice(kinds)(draw, run):
            word = word.replace("{n}", draw.choice(WORDS)).replace("{n}", draw.choice(WORDS))
            for place, path in places.items():
                word = word.replace(place, path)
            words.append(word)
        said = ask([words], folder)
        shutil.rmtree(folder)
        return [f"{answer.named}: {answer.traceback}" for answer in said if answer.traceback]

    def _config(self, draw: random.Random, run: Path) -> list[str]:
        """A table and a key of config.toml with some value."""
        words = draw.choice(self.commands)
        command = _find(words)
        names = [option.removeprefix("--") for parameter in command.params for option in parameter.opts
                 if option.startswith("--")]
        table, key = draw.choice([command.name, *TABLES]), draw.choice([*names, "x"])
        value = draw.choice(TOML)
        (run / "config.toml").write_text(draw.choice([
            f"[{table}]\n{key} = {value}\n", f"[[{table}]]\n{key} = {value}\n", f"{table} = {value}\n",
            f"[{table}.{key}]\nx = {value}\n", f"[{table}]\n{key} = {value}\n{key} = {value}\n", value]))
        if draw.random() < 0.1:
            (run / "config.toml").write_bytes(draw.choice(RAW))
        if draw.random() < 0.3:
            return [*_init(run), "--tasks", "synthetic:2", "--config", str(run / "config.toml")]
        return [*words, *_arguments(command)]

    def _option(self, draw: random.Random, _run: Path) -> list[str]:
        """One or two options of any command with some value."""
        words = draw.choice(self.commands)
        command = _find(words)
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)
                   and parameter.name not in ("every", "help", "version")]
        given = [*words, *_arguments(command, draw)]
        for option in draw.sample(options, min(len(options), draw.randint(1, 2))):
            given += [option.opts[0], *([] if option.is_flag else [draw.choice(WORDS)])]
        return given

    def _tasks(self, draw: random.Random, run: Path) -> list[str]:
        """A file of tasks with one place in it changed, or that is no file of tasks."""
        lines = [json.dumps(task) for task in TASKS]
        chosen = draw.randrange(len(lines))
        lines[chosen] = json.dumps(mutate(_own(TASKS[chosen]), draw))
        name = draw.choice(["tasks.jsonl", "tasks.jsonl.zst", "tasks.json", "tasks.json.gz"])
        text = "\n".join(lines) if "jsonl" in name else json.dumps(mutate({"t": _own(TURN)}, draw))
        return [*_init(run), "--tasks", str(_written(run.parent / name, text.encode(), draw))]

    def _source(self, draw: random.Random, run: Path) -> list[str]:
        """The text of a source."""
        return [*_init(run), draw.choice(["--tasks", "--heldout"]), draw.choice(SOURCES), "--tasks",
                "synthetic:1"]

    def _rollouts(self, draw: random.Random, run: Path) -> list[str]:
        """Lines to import with one place in them changed, or that are no lines."""
        rows = _own(self.rows)
        rows[draw.randrange(len(rows))] = mutate(rows[0], draw)
        text = "\n".join(json.dumps(row) for row in rows).encode()
        path = _written(run.parent / draw.choice(["rows.jsonl", "rows.jsonl.zst"]), text, draw)
        iteration = draw.choice(["5", "5", "5", *WORDS[:12]])
        return ["warehouse", "import", str(run), str(path), "--iteration", iteration,
                *draw.choice([[], ["--plain-sampling"], ["--purpose", draw.choice(WORDS)]])]


def _own(value: Any) -> Any:
    """A copy that may be changed."""
    return json.loads(json.dumps(value))


def _written(path: Path, text: bytes, draw: random.Random) -> Path:
    """The file, packed as its name says, and now and then damaged or something else."""
    text = draw.choice(RAW) if draw.random() < 0.2 else text
    if path.suffix == ".gz":
        text = gzip.compress(text)
    if path.suffix == ".zst":
        text = pa.compress(text, "zstd", asbytes=True)
    if draw.random() < 0.2 and text:
        at = draw.randrange(len(text))
        text = draw.choice([text[:at], text[:at] + draw.randbytes(5) + text[at:], text + b"\n" + text])
    if draw.random() < 0.05:
        path.mkdir()
    else:
        path.write_bytes(text)
    return path


def _init(run: Path) -> list[str]:
    model = json.loads((run / "warehouse.json").read_text())["model"]
    return ["warehouse", "init", str(run.parent / "new"), "--model", str((run / model).resolve())]


def _commands() -> list[list[str]]:
    """Every command that there is, as the words that call it."""
    return [[name, *words] for name in COMMANDS for words in _words(command_of(name))]


def _words(command: Any) -> list[list[str]]:
    """What may follow the name of a command: nothing if it is not a group, or a command below or beside."""
    below = [[name, *words] for name, inner in getattr(command, "commands", {}).items()
             for words in _words(inner)]
    return below if isinstance(command, click.Group) else [*below, []]


def _find(words: list[str]) -> click.Command:
    """The command that the words call."""
    command: Any = command_of(words[0])
    for word in words[1:]:
        command = command.commands[word]
    return command


def _arguments(command: click.Command, draw: random.Random | None = None) -> list[str]:
    """Its arguments: mostly fitting ones."""
    fitting = {"run": "{run}", "other": "{run}", "completion": "0/t0/0", "query": "SELECT 1",
               "output": "{folder}/out", "source": "{binary}"}
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    return [draw.choice(WORDS) if draw and draw.random() < 0.15 else fitting.get(argument.name or "", "t0")
            for argument in arguments]


