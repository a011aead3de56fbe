"""Damage a part or a manifest of each kind in a whole run, and type what a user would.

    python -m tests.chaos.losses [--seed 0] [--only KINDS] [--share 1]

Commands refuse in a sentence and change no file that was there; a number that differs comes with a warning;
`compact` and `prune` make no damage permanent; `check --fix` and the commands that it prints lead to a sound
run with the same rows, or a copy is asked for.
"""

import argparse
import hashlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from tests.building import plain
from tests.building.runs import STARTER, TURN, arc_file, new_run, without_waiting
from warehouse.cli import cli
from warehouse.maintain.check import folders_that_count
from warehouse.maintain.compact import compact_run
from warehouse.maintain.prune import prune_policies, prune_run
from warehouse.maintain.tasks import add_tasks
from warehouse.store import checksums
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse

DERIVED = ("iterations/", "warehouse.sql")
TABLES = ("completions", "prompts", "carried", "samples", "policy_logprobs", "train_samples", "train_steps",
          "iteration_stats")
NUMBERS = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM {table}" for table in TABLES)
ROWS = "SELECT iteration, purpose, task_id, sample_index, completion FROM completions ORDER BY ALL"
READERS = {"log": ["log"], "summary": ["summary"], "numbers": ["sql", "--format", "csv", NUMBERS],
           "rows": ["sql", "--format", "csv", ROWS]}
WRITERS = {"compact": ["compact"], "prune": ["prune", "--before", "3", "--yes"]}
ADDED = ",more,"         # a task that came later
PRINTED = re.compile(r"\b((?:rollout|score|train) \S*/run(?: --[a-z-]+(?: \w+)?)*)")


class Told(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str
    error: BaseException | None


def whole_run(folder: Path) -> Path:
    """Evaluations, rows carried over, tasks added, merged and pruned rows, and policies without weights."""
    run = new_run(folder / "run", {f"t{number}": TURN for number in range(4)}, {"h0": TURN}, model=STARTER)
    for iteration in range(5):
        if iteration == 4:
            arc_file(folder, ["more"])
            add_tasks(run, (f"more={folder / 'more.json'}",), ())
        if iteration in (0, 3):
            plain.sample(run, evaluate=True, iteration=iteration)
        plain.sample(run, **({"carry_over": "0.5"} if iteration == 1 else {}))
        plain.score(run)
        plain.train(run)
    plain.logprobs(run, 1, 2, "train", 0.1)
    compact_run(run, 0)
    compact_run(run, 3)
    prune_run(run, 1, dry_run=False)
    prune_policies(run, 4)
    return run.root


def kinds(run: Path) -> dict[str, list[str]]:
    """Parts and manifests that count, by kind: their path without numbers."""
    found: dict[str, list[str]] = {}
    for folder in sorted(folders_that_count(open_warehouse(run))):
        for path in sorted([*folder.glob("*-*.parquet"), *folder.glob("manifest.json")]):
            name = str(path.relative_to(run))
            kind = re.sub(r"\d+", "N", re.sub(r"(?<=-)[0-9a-f]{12}", "X", name))
            found.setdefault(kind.replace("purpose=eval", "purpose=train"), []).append(name)
    return found


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def flipped(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(7)
    overwrite(path, bytes(content))


def swapped(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    others = [other for other in sorted(path.parents[3].rglob(f"*{path.name[-8:]}"))
              if path.suffix == ".parquet" and other.read_bytes() != content]
    if others:
        overwrite(path, draw.choice(others).read_bytes())


def stray(path: Path, _draw: random.Random) -> None:
    if path.suffix == ".parquet":
        shutil.copy(path, path.with_name(re.sub(r"\d+(?=\.)", "00070", path.name)))


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "deleted": lambda path, _draw: path.unlink(),
    "cut off": lambda path, _draw: overwrite(path, path.read_bytes()[:path.stat().st_size // 2]),
    "flipped": flipped, "swapped": swapped, "stray": stray}


def say(run: Path, words: list[str]) -> Told:
    """A command about the run, in this process."""
    told = CliRunner().invoke(cli, [words[0], str(run), *words[1:]])
    checksums._hash_once.cache_clear()          # a user's command is a new process
    checksums.check_tasks.cache_clear()
    return Told(told.exit_code, told.stdout, told.stderr, told.exception)


def readings(run: Path) -> dict[str, Told]:
    return {name: say(run, words) for name, words in (READERS | {"check": ["check"]}).items()}


def content(run: Path) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(run.rglob("*"))
            if path.is_file() and not (name := str(path.relative_to(run))).startswith(DERIVED)}


def unwanted(name: str, told: Told) -> Iterator[str]:
    """A refusal is a sentence, and a bug is no refusal."""
    if told.error is not None and not isinstance(told.error, SystemExit):
        yield f"traceback of {name}: {told.error!r}"
    elif told.code not in (0, 1) or (told.code and not told.out and not told.err.startswith("Error: ")):
        yield f"no sentence of {name}, code {told.code}: {told.err[-300:]}"


def damaged(whole: Path, run: Path, name: str, damage: str, seed: int) -> dict[str, str]:
    """Make `run` a damaged copy of the whole run; its files."""
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    DAMAGES[damage](run / name, random.Random(seed))
    return content(run)


def try_damage(whole: Path, run: Path, name: str, damage: str, seed: int,
               usual: dict[str, Told]) -> list[str] | None:
    """What must not be after the damage; None if it damages nothing."""
    if damaged(whole, run, name, damage, seed) == content(whole):
        return None
    return [*look(run, usual), *rewrite(whole, run, name, damage, seed),
            *mend(whole, run, name, damage, seed, usual)]


def look(run: Path, usual: dict[str, Told]) -> Iterator[str]:
    """Reading shows the same numbers or a warning, and changes nothing; check finds the damage."""
    before = content(run)
    for name, told in readings(run).items():
        yield from unwanted(name, told)
        if name != "check" and told.code == 0 and told.out != usual[name].out and "warning:" not in told.err:
            yield f"{name} says another thing without a word"
        if name == "check" and told.code == 0:
            yield "check finds nothing"
    if content(run) != before:
        yield "reading changes files"


def rewrite(whole: Path, run: Path, name: str, damage: str, seed: int) -> Iterator[str]:
    """What commands write from damaged files is not sound; files beside those that count may go."""
    for command, words in WRITERS.items():
        before = damaged(whole, run, name, damage, seed)
        told = say(run, words)
        yield from unwanted(command, told)
        if told.code and name in before.keys() - content(run).keys():
            yield f"{command} refuses and removes {name}"
        if told.code == 0 and damage != "stray" and say(run, ["check"]).code == 0:
            yield f"{command} makes the damage permanent"


def mend(whole: Path, run: Path, name: str, damage: str, seed: int, usual: dict[str, Told]) -> Iterator[str]:
    """`check --fix` and what it prints; no file is changed or removed, no row is another."""
    before = damaged(whole, run, name, damage, seed)
    fixed = say(run, ["check", "--fix"])
    yield from unwanted("check --fix", fixed)
    printed = fixed
    for _ in range(3):
        for words in dict.fromkeys(PRINTED.findall(printed.out)):
            follow(run, words)
        printed = say(run, ["check"])
    if printed.code and not re.search(r"estore \S+ from a copy", printed.out):
        yield f"no way on: {printed.out.splitlines()[0]}"
    if printed.code and not fixed.code:
        yield f"fixed, yet: {printed.out.splitlines()[0]}"
    if gone := before.items() - content(run).items():
        yield f"check --fix changes {sorted(gone)[0][0]}"
    told = say(run, READERS["rows"])
    new = {*told.out.splitlines()} - {*usual["rows"].out.splitlines()}
    if new := {row for row in new if ADDED not in row}:     # a plan that is lost is made of today's tasks
        yield f"another row: {sorted(new)[0]}"


def follow(run: Path, words: str) -> None:
    """A printed command, with its options in the log, by stages without a model."""
    warehouse, number = open_warehouse(run), re.search(r"--iteration (\d+)", words)
    options: dict[str, Any] = {"iteration": int(number[1])} if number else {}
    try:
        if words.startswith("score"):
            plain.score(warehouse)
        elif words.startswith("train"):
            plain.train(warehouse)
        else:
            options |= {"evaluate": True} if "--eval" in words else {}
            options |= {"carry_over": "0.5"} if options.get("iteration") == 1 else {}
            accepted = re.search(r"--accept-change (\w+)", words)
            plain.sample(warehouse, **options, accept_change=(accepted[1],) if accepted else ())
    except StageError:
        return          # what is left is said by check


def damage_all(seed: int, only: str = "", share: float = 1.0, names: str = "") -> tuple[int, list[str]]:
    """Damage a file of each kind in each way and print a line per kind: how often, and what went wrong."""
    draw, total, failures = random.Random(seed), 0, list[str]()
    with tempfile.TemporaryDirectory(prefix="losses-") as folder, without_waiting():
        whole, run = whole_run(Path(folder) / "whole"), Path(folder) / "trial" / "run"
        shutil.copytree(whole, run)
        usual = readings(run)
        for kind, files in kinds(whole).items():
            name, before = draw.choice(files), total
            for damage in DAMAGES if re.search(only, kind) else ():
                if draw.random() < share and re.search(names, damage) and (
                        wrong := try_damage(whole, run, name, damage, seed, usual)) is not None:
                    total += 1
                    failures += [f"{name}, {damage}: {text.replace(str(run), '')}" for text in wrong]
            print(f"  {total - before:4d} damages of {kind}", flush=True)
    return total, failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="which file of a kind, which byte (default 0)")
    parser.add_argument("--only", default="", help="kinds that this pattern finds")
    parser.add_argument("--damage", default="", help="damages that this pattern finds")
    parser.add_argument("--share", type=float, default=1.0, help="this part of it alone (default 1)")
    options = parser.parse_args()
    total, failures = damage_all(options.seed, options.only, options.share, options.damage)
    print(*(f"FAILED {text}" for text in failures), f"{total} losses, {len(failures)} failures", sep="\n")
    sys.exit(bool(failures))
