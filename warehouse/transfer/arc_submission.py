"""Kaggle's submission.json for ARC: two attempts per test input, voted for by the task's completions."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from warehouse.sql.catalog import condition, of_purposes
from warehouse.sql.database import Connection, rows_of
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, counted
from warehouse.tasks.task_files import load_json

# How completions vote, by the first number first: solving all train pairs, shares of train pairs, heads.
VOTES = {"solved": ("solved", "share", "num"), "share": ("share", "num"), "all": ("num",)}
NO_ATTEMPT = [[0, 0], [0, 0]]
CANDIDATES = """
SELECT task_id, outputs, count(*) AS num, sum(coalesce(train_correct_grids, 0)) AS share,
       count(*) FILTER (train_is_correct) AS solved
FROM samples WHERE valid_outputs AND {where} GROUP BY task_id, outputs
"""
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
