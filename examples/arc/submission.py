"""Kaggle's submission.json for ARC: two attempts per test input, voted for by the task's completions.

    python -m examples.arc.submission write RUN submission.json [--purpose eval] [--challenges FILE]
    python -m examples.arc.submission score RUN submission.json
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

import warehouse
from warehouse.inspect.render import as_table
from warehouse.options import shows_errors
from warehouse.sql.catalog import condition, of_purposes
from warehouse.sql.database import Connection, rows_of
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, counted
from warehouse.tasks.payloads import grid_problem
from warehouse.tasks.task_files import load_json

# How completions vote, by the first number first: solving all train pairs, shares of train pairs, heads.
VOTES = {"solved": ("solved", "share", "num"), "share": ("share", "num"), "all": ("num",)}
NO_ATTEMPT = [[0, 0], [0, 0]]
CANDIDATES = """
SELECT task_id, outputs, count(*) AS num, sum(coalesce(train_correct_grids, 0)) AS share,
       count(*) FILTER (train_is_correct) AS solved
FROM samples WHERE valid_outputs AND {where} GROUP BY task_id, outputs
"""
WAY_OUT = "The command `write` writes one."
COLUMNS = ["split", "tasks", "attempted", "test inputs", "attempt 1", "two attempts", "score", "solved"]
Submission = dict[str, list[dict[str, Any]]]


def export_submission(connection: Connection, output: Path, *, vote: str = "solved",
                      challenges: Path | None = None, iterations: tuple[int, ...] = (),
                      purpose: str | None = None) -> list[str]:
    """Write the submission; lines to print. With `challenges`, for exactly the tasks of that file.

    StageError where no completion of a grid task fits, or a task of the file is another in the run.
    """
    grids = rows_of(connection, "SELECT task_id, payload FROM tasks WHERE kind = 'grid'")
    tests = {row["task_id"]: [pair["input"] for pair in json.loads(row["payload"])["test"]] for row in grids}
    chosen = f"{condition({'iteration': iterations})} AND {of_purposes([purpose] if purpose else [])}"
    query = CANDIDATES.format(where=chosen)
    candidates = [row for row in rows_of(connection, query) if row["task_id"] in tests]
    if not candidates:
        raise StageError("No completion with valid outputs of a grid task fits. See what there is: SELECT "
                         "iteration, purpose, count(*) FROM samples WHERE valid_outputs GROUP BY ALL")
    ballots = count_votes(candidates)
    wanted = (read_challenges(challenges, tests) if challenges else
              {name: inputs for name, inputs in tests.items() if (name, 0) in ballots})
    submission: Submission = {name: [attempts(ballots.get((name, place), {}), vote)
                                     for place in range(len(inputs))] for name, inputs in wanted.items()}
    replace_bytes(output, json.dumps(submission).encode())
    empty = sum((name, 0) not in ballots for name in wanted)
    inputs = counted(sum(map(len, wanted.values())), "test input")
    return [f"{output}: two attempts for {inputs} of {counted(len(wanted), 'task')}",
            *([f"{empty} of the tasks have no completion with valid outputs: their attempts are placeholders"]
              if empty else [])]


def count_votes(candidates: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    """For each task and test input: every grid given for it, as JSON, with its votes of each sort."""
    ballots: dict[tuple[str, int], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in candidates:
        for place, grid in enumerate(json.loads(row["outputs"])["test"]):
            votes = ballots[row["task_id"], place].setdefault(json.dumps(grid),
                                                              dict.fromkeys(VOTES["solved"], 0.0))
            for name in votes:
                votes[name] += row[name]
    return ballots


def attempts(votes: dict[str, dict[str, float]], vote: str) -> dict[str, Any]:
    """The two grids with most votes; the first again where there is no second."""
    ranked = sorted(votes, key=lambda grid: (*(-votes[grid][name] for name in VOTES[vote]), grid))
    grids = [json.loads(grid) for grid in ranked[:2]] or [NO_ATTEMPT]
    return {"attempt_1": grids[0], "attempt_2": grids[-1]}


def read_challenges(path: Path, tests: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The test inputs of a challenges file; StageError where the run knows a task by other test inputs."""
    wanted = {}
    for name, task in load_json(path, dict, "tasks by id").items():
        try:
            wanted[name] = [pair["input"] for pair in task["test"]]
        except (TypeError, KeyError) as error:
            raise StageError(f"{path}: task {name} has no list 'test' of inputs. Correct it.") from error
        if name in tests and tests[name] != wanted[name]:
            raise StageError(f"{path}: the test inputs of task {name} are not those of the run. It is "
                             "another edition of the set: name the challenges that the run was made from.")
    if not wanted.keys() & tests.keys():
        raise StageError(f"{path} has no task of this run. Name the challenges that the run was made from.")
    return wanted


def submission_table(connection: Connection, path: Path) -> tuple[list[str], list[list[Any]]]:
    """Per split and for all: shares of test inputs right by one and by two attempts, and of tasks.

    `score` is Kaggle's: the mean over tasks of the share of test inputs that one of two attempts gets right;
    `solved` the share of tasks with all of them. Tasks without an attempt count as wrong. Where solutions are
    not known these are null, and every task has to be there. StageError where Kaggle would refuse the file.
    """
    try:
        submission = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:       # not JSON, or not even text
        raise StageError(f"{path} is not a submission ({error}). {WAY_OUT}") from error
    if not isinstance(submission, dict):
        raise StageError(f"{path} is not a submission (it is not an object). {WAY_OUT}")
    tasks = [row | {"expected": [pair.get("output") for pair in json.loads(row["payload"])["test"]]}
             for row in rows_of(connection, "SELECT task_id, split, payload FROM tasks WHERE kind = 'grid'")]
    if not {task["task_id"] for task in tasks} & submission.keys():
        raise StageError(f"{path} has no task of this run. Give a submission for its tasks.")
    by_split: dict[str, list[dict[str, Any]]] = {
        split: [task for task in tasks if task["split"] == split]
        for split in dict.fromkeys(task["split"] for task in tasks if task["task_id"] in submission)}
    if len(by_split) > 1:
        by_split["all of these"] = [task for tasks in by_split.values() for task in tasks]
    return COLUMNS, [_row(title, tasks, submission, path) for title, tasks in by_split.items()]


def _row(title: str, tasks: list[dict[str, Any]], submission: dict[str, Any], path: Path) -> list[Any]:
    first, either = [], []
    for task in tasks:
        expected = task["expected"]
        given = submission.get(task["task_id"], [{}] * len(expected))
        if (not isinstance(given, list) or len(given) != len(expected)
                or not all(isinstance(each, dict) for each in given)):
            raise StageError(f"{path}: task {task['task_id']} has not one object of attempts for each of its "
                             f"{len(expected)} test inputs. Correct it.")
        for each in given if task["task_id"] in submission else ():
            for name in ("attempt_1", "attempt_2"):
                if problem := grid_problem(each.get(name)):
                    raise StageError(f"{path}: {name} of task {task['task_id']} {problem}, and Kaggle "
                                     "refuses the file. Correct it.")
        attempts = [(each.get("attempt_1"), each.get("attempt_2")) for each in given]
        first.append([grid == pair[0] for pair, grid in zip(attempts, expected, strict=True)])
        either.append([grid in pair for pair, grid in zip(attempts, expected, strict=True)])
    inputs = sum(map(len, first))
    hidden = any(None in task["expected"] for task in tasks)
    if hidden and (missing := [task["task_id"] for task in tasks if task["task_id"] not in submission]):
        raise StageError(f"{path} lacks {counted(len(missing), 'task')}, {missing[0]} among them, and Kaggle "
                         "refuses the file. `write` with --challenges fills them in.")
    if hidden:      # its form is right, and that is all that can be known
        return [title, len(tasks), len(tasks), inputs, None, None, None, None]
    return [title, len(tasks), sum(task["task_id"] in submission for task in tasks), inputs,
            sum(map(sum, first)) / inputs, sum(map(sum, either)) / inputs,
            sum(sum(right) / len(right) for right in either) / len(tasks), sum(map(all, either)) / len(tasks)]


@click.group()
def cli() -> None:
    """Write a submission to the ARC Prize, or score one."""


@cli.command()
@click.argument("run")
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--iteration", multiple=True, type=click.IntRange(min=0), help="Iterations; all by default.")
@click.option("--purpose", default=None, help="One purpose, or eval for every evaluation; all by default.")
@click.option("--vote", type=click.Choice(["solved", "share", "all"]), default="solved", show_default=True,
              help="Who votes first: completions that solve all train pairs, all by their share of train "
                   "pairs, or all alike.")
@click.option("--challenges", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="Kaggle's file with the tasks that it has to hold.")
@shows_errors
def write(run: str, output: Path, iteration: tuple[int, ...], purpose: str | None, vote: str,
          challenges: Path | None) -> None:
    """Write the two grids that most completions give for each test input."""
    click.echo("\n".join(export_submission(warehouse.open(run, strict=True), output, vote=vote,
                                           challenges=challenges, iterations=iteration, purpose=purpose)))


@cli.command()
@click.argument("run")
@click.argument("submission", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@shows_errors
def score(run: str, submission: Path) -> None:
    """Score a submission with the run's solutions."""
    click.echo(as_table(*submission_table(warehouse.open(run), submission)))


if __name__ == "__main__":
    cli()
