"""Kill each command that cares for a run at every call that changes a file, and look at what is left.

    python -m tests.chaos.care [--every N]

A killed command leaves a run that the next command finishes: `check` finds nothing that was not wrong before,
the same command ends well, and the files are those that the command leaves when it is not killed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow.parquet as pq
from click.testing import CliRunner

from tests.building.long import lengthen
from tests.building.runs import back_before, begin, change_document
from tests.building.runs import table as as_table
from tests.building.sound import check_run
from tests.building.weather import SCORER, build_run
from tests.chaos.kills import Step, to_the_end
from tests.chaos.loop import new_run
from train.cli import train
from warehouse.cli import cli
from warehouse.maintain.check import folders_that_count
from warehouse.maintain.compact import compact_run
from warehouse.store.checksums import file_hashes
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import open_warehouse

CALLS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NAMED = re.compile(r"generation=\w+-(\w+-)?\w{6,12}")       # of a rewritten stage, or of tasks
PASSING = {"finished_at", "compacted_at", "at", "bytes", "checksum", "sha256", "bytes_after", "bytes_before"}
COMPLETIONS, TRAIN = "completions/iteration={}/purpose=train", "train/iteration={}"


class Case(NamedTuple):
    """A command and what makes a run ready for it; words of the command may name {run} and {folder}."""

    name: str
    words: str
    prepare: Callable[[Path], None] = lambda run: None
    real: bool = False  # of policies that really load


def untrain(run: Path) -> None:
    """Take the last training back: policy 1 is the newest, and iteration 1 was sampled from it."""
    back_before(open_warehouse(run), "train", iteration=1)


def untrain_all(run: Path) -> None:
    """Take both trainings back: no policy was trained on the scores."""
    untrain(run)
    back_before(open_warehouse(run), "train", iteration=0)


def sample_ahead(run: Path) -> None:
    """As after a training while whose watch policy 1 samples iteration 2, ahead, already."""
    untrain(run)
    warehouse, keys = open_warehouse(run), {"iteration": 1, "purpose": "train"}
    begin(warehouse, "rollout", {"policy_version": 1}, iteration=2, purpose="train")
    for table in ("prompts", "completions"):
        for number, part in enumerate(warehouse.parts(table, **keys)):
            rows = [{**row, "iteration": 2, "group_id": f"2{row['group_id'][1:]}"}
                    for row in read_parts([part], table).to_pylist()]
            warehouse.write_part(table, number, as_table(table, rows), iteration=2, purpose="train")


def begin_training(run: Path) -> None:
    """A training of iteration 1 that has begun."""
    untrain(run)
    begin(open_warehouse(run), "train", {"scorer": SCORER}, iteration=1)


def damage(*names: str) -> Callable[[Path], None]:
    """Flip a bit in each of the files."""
    def flip(run: Path) -> None:
        for name in names:
            path, = run.glob(name)
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.chmod(0o644)
            path.write_bytes(content)
    return flip


def damage_compacted(run: Path) -> None:
    """A bit of a merged part, and half of another manifest of merged parts."""
    compact_run(open_warehouse(run))
    damage(f"{COMPLETIONS.format(0)}/*/part-00000.parquet")(run)
    torn, = run.glob(f"{COMPLETIONS.format(1)}/*/manifest.json")
    torn.chmod(0o644)
    torn.write_text("{")


def lines_to_import(run: Path) -> None:
    """Rows of this run, to be imported as another iteration."""
    path = run.parent / "rows.jsonl"
    rows = [{**row, "prompt_ids": [1, 2, 3], "policy_version": 0} for row in open_warehouse(run).read(
        "completions", ["task_id", "completion_ids", "behaviour_logprobs", "completion", "finish_reason"],
        iteration=0, purpose="train").to_pylist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def other_tasks(run: Path) -> None:
    """The tasks of the run, each with its tests as its examples."""
    rows = open_warehouse(run).read("tasks").to_pylist()
    payloads = [{**json.loads(row["payload"]), "train": json.loads(row["payload"])["test"]} for row in rows]
    (run.parent / "tasks.jsonl").write_text("".join(
        json.dumps({"task_id": row["task_id"], "kind": "grid", "payload": payload}) + "\n"
        for row, payload in zip(rows, payloads, strict=True)))


def new_tasks(run: Path) -> None:
    """The same under other names."""
    other_tasks(run)
    path = run.parent / "tasks.jsonl"
    path.write_text(path.read_text().replace('{"task_id": "', '{"task_id": "more-'))


SAMPLES = f"samples/iteration=0/purpose=train/scorer={SCORER}"
CASES = (
    Case("rollback", "rollback {run} --to 1"),
    Case("rollback of a sampled policy", "rollback {run} --to 0", sample_ahead),
    Case("prune", "prune {run} --before 2 --yes"),
    Case("compact", "compact {run}"),
    Case("discard eval", "discard {run} --iteration 0 --purpose eval"),
    Case("discard train", "discard {run} --iteration 1 --purpose train", untrain),
    Case("discard training", "discard {run} --iteration 1 --training", begin_training),
    Case("fix completions", "check {run} --fix --iteration 0",
         damage(f"{COMPLETIONS.format(0)}/*/part-00001.parquet")),
    Case("fix samples", "check {run} --fix", damage(f"{SAMPLES}/*/part-00000.parquet")),
    Case("fix prompts", "check {run} --fix",
         damage("prompts/iteration=1/purpose=train/*/part-00000.parquet")),
    Case("fix a training", "check {run} --fix", damage(f"{TRAIN.format(1)}/*/samples-00000.parquet")),
    Case("fix lost rows", "check {run} --fix", damage(f"{TRAIN.format(0)}/*/samples-00000.parquet")),
    Case("fix merged parts", "check {run} --fix", damage_compacted),
    Case("discard scores", f"discard {{run}} --iteration 0 --purpose train --scorer {SCORER}", untrain_all),
    Case("branch", "branch {run} {folder}/new --at 1"),
    Case("tasks replace", "tasks replace {run} {folder}/tasks.jsonl", other_tasks),
    Case("tasks add", "tasks add {run} --tasks more={folder}/tasks.jsonl", new_tasks),
    Case("import", "import {run} {folder}/rows.jsonl --iteration 5 --plain-sampling", lines_to_import),
    Case("export jsonl", "export {run} {folder}/out/rows.jsonl"),
    Case("export parquet", "export {run} {folder}/out/rows.parquet"),
    Case("train export", "train export {run} --output {folder}/out", real=True),
    Case("train --keep-policies", "train {run} --iteration 3 --keep-policies 2", real=True),
)


def prepared(case: Case, whole: Path, folder: Path) -> Path:
    """A copy of the whole run, made ready for the command."""
    run = Path(shutil.copytree(whole, folder / "run"))
    case.prepare(run)
    return run


def kill_everywhere(case: Case, whole: Path, folder: Path, first: int = 1,
                    every: int = 1) -> Iterator[str | None]:
    """One kill for each call that changes a file (each `every`th from `first`); what went wrong, or None.

    Behind the last call there is nothing to kill: the command is typed again once all is done.
    """
    calm = prepared(case, whole, folder / "undisturbed")
    before = set(check_run(open_warehouse(calm)).problems)
    status = run_and_die(case, calm, 0)
    assert status == 0, f"{case.name} exited with {status} undisturbed"
    wanted = state(calm.parent)
    allowed = {_named(text, calm) for text in before | set(check_run(open_warehouse(calm)).problems)}
    number, status = first, -signal.SIGKILL
    while status == -signal.SIGKILL:
        run = prepared(case, whole, folder / f"killed-{number}")
        status = run_and_die(case, run, number)
        if status in (0, -signal.SIGKILL):
            yield look_at(case, run, number, wanted, allowed)
        else:
            yield f"{case.name}, call {number}: exit code {status} instead of a kill"
        shutil.rmtree(run.parent)
        number += every


def look_at(case: Case, run: Path, number: int, wanted: dict[str, Any], allowed: set[str]) -> str | None:
    """What is wrong with a run whose command was killed, and that runs it again."""
    title = f"{case.name}, call {number}"
    twin = Path(shutil.copytree(run.parent, run.parents[1] / f"twin-{number}")) / "run"
    problems = {_named(text, twin) for text in check_run(open_warehouse(twin)).problems}
    shutil.rmtree(twin.parent)
    if problems - allowed:
        return f"{title}: check says {sorted(problems - allowed)[0]}"
    if status := run_and_die(case, run, 0):  # in a child too: threads of torch would not survive a fork
        return f"{title}: run again it exits with {status}"
    actual = state(run.parent)
    other = [name for name in sorted(wanted.keys() | actual.keys()) if wanted.get(name) != actual.get(name)]
    return f"{title}: {other[0]} of {len(other)} differs from an undisturbed run" if other else None


def _named(text: str, run: Path) -> str:
    return NAMED.sub("generation=NAME", text.replace(str(run), ""))


def words(case: Case, run: Path) -> tuple[click.Command, list[str]]:
    """The command and what it is given."""
    given = [word.format(run=run, folder=run.parent) for word in case.words.split()]
    return (train, given[1:]) if given[0] == "train" else (cli, given)


def die_at(folder: Path, number: int) -> None:
    """From now on this process is killed before its `number`th call that changes a file in a folder."""
    calls = 0

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if (event in CALLS or writes) and str(folder) in str(arguments[0]):
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)


def run_and_die(case: Case, run: Path, number: int) -> int:
    """Exit code of the command in a process of its own, killed before its `number`th call that writes."""
    child = os.fork()
    if child == 0:
        die_at(run.parent, number)
        result = CliRunner().invoke(*words(case, run))
        if result.exit_code:
            sys.__stderr__.write(f"{result.output}{result.exception!r}\n")
        os._exit(result.exit_code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state(folder: Path) -> dict[str, Any]:
    """What two runs must share: every file by its name, rows of parts, JSON without times and hashes."""
    found: dict[str, Any] = {}
    counting = folders_that_count(open_warehouse(folder / "run"))
    for path in sorted(folder.rglob("*")):
        name = NAMED.sub("generation=NAME", str(path.relative_to(folder)))
        if path.is_dir() or ".tmp-" in name or name.startswith((
                "run/warehouse.sql", "run/iterations", "run/_log/", "new/_log/", "new/warehouse.json")):
            continue
        if "generation=" in name and not counting & {*path.parents}:
            continue
        if path.suffix == ".parquet":
            rows = str(pq.ParquetFile(path).read().drop_columns(
                [column for column in ("finished_at",) if column in pq.read_schema(path).names]).to_pylist())
            found[name] = hashlib.sha256(rows.replace(str(folder), "").encode()).hexdigest()
        elif path.name.startswith("manifest"):
            found[name] = [_lasting(value) for value in _values(path)]
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _values(path: Path) -> list[Any]:
    text = path.read_text()
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [text]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in PASSING}
    return [_lasting(one) for one in value] if isinstance(value, list) else value


def whole_run(folder: Path) -> Path:
    """Two iterations, rolled out, scored and trained, with an evaluation; policies that hold weights."""
    build_run(folder, iterations=2, evals=(0,), num_tasks=4, group_size=2)
    for version in (1, 2):
        policy = open_warehouse(folder).policy_dir(version)
        (policy / "adapter_model.safetensors").write_bytes(b"weights of %d" % version)
        (policy / "optimizer.pt").write_bytes(b"moments of %d" % version)
        files = {name: value for name, value in file_hashes(policy).items() if name != "policy.json"}
        change_document(policy / "policy.json", kind="lora", sha256=files["adapter_model.safetensors"],
                        files=files)
    return folder


def real_run(folder: Path) -> Path:
    """Four iterations whose policies load: the first, and copies of it."""
    warehouse = new_run(folder)
    for name in ("rollout", "score", "train"):
        assert to_the_end(Step(name, 0), warehouse).code == 0
    lengthen(warehouse, 4)
    return warehouse.root


def kill_all(every: int = 1, only: str = "") -> tuple[int, list[str]]:
    """Kill everything everywhere and print a line per command: how many died, and what went wrong."""
    total, failures = 0, []
    with tempfile.TemporaryDirectory(prefix="care-") as folder:
        wholes = {False: whole_run(Path(folder) / "whole"), True: real_run(Path(folder) / "real")}
        for case in (case for case in CASES if case.name.startswith(only)):
            place = Path(folder) / case.name.replace(" ", "-")
            told = list(kill_everywhere(case, wholes[case.real], place, every=every))
            total, failures = total + len(told) - 1, failures + [text for text in told if text]
            print(f"  {len(told) - 1:4d} kills of {case.name}", flush=True)
    return total, failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="kill at each so-manieth call only")
    parser.add_argument("--only", default="", help="commands whose names begin so")
    options = parser.parse_args()
    total, failures = kill_all(options.every, options.only)
    print(*(f"FAILED {text}" for text in failures), f"{total} kills, {len(failures)} failures", sep="\n")
    sys.exit(bool(failures))
