"""Tasks that two runs have both, in pairs: which rows are paired, and what they say."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError

VISITS_SQL = """\
SELECT iteration, purpose, list(task_id) AS tasks
FROM task_results WHERE n > 0 AND turn_of(purpose) = 1 GROUP BY iteration, purpose"""
PAYLOADS_SQL = "SELECT task_id, md5(payload) AS payload FROM tasks"
TASKS_SQL = """\
SELECT task_id, c, n FROM task_results
WHERE n > 0 AND iteration = {iteration} AND purpose = '{purpose}'"""


class Pairing(NamedTuple):
    """What two runs did on the same tasks at the same iteration, for the same purpose."""

    iteration: int
    purpose: str
    pairs: list[dict[str, Any]]
    latest: int  # the latest training iteration that either run has scored; -1 without any

    @property
    def title(self) -> str:
        """Which rows are paired."""
        kind = "Training" if self.purpose == "train" else f"Evaluation '{self.purpose}'"
        return f"{kind} at iteration {self.iteration}"

    @property
    def remark(self) -> str:
        """What a reader must know before believing the numbers; empty where there is nothing."""
        if self.iteration >= self.latest:
            return ""
        if self.purpose == "train":
            return f"The latest iteration that both runs have scored; one goes on to {self.latest}."
        return (f"Older than the latest training iteration, {self.latest}: it says nothing of what was "
                "learnt since.")

    @property
    def sql(self) -> str:
        """The query that gives each run's side."""
        return TASKS_SQL.format(iteration=self.iteration, purpose=self.purpose.replace("'", "''"))


def other_tasks(a: Connection, b: Connection) -> set[str]:
    """Tasks that both runs have by name, and that are others."""
    left, right = ({row["task_id"]: row["payload"] for row in rows_of(run, PAYLOADS_SQL)} for run in (a, b))
    return {task for task in left.keys() & right.keys() if left[task] != right[task]}


def paired_tasks(a: Connection, b: Connection, others: Collection[str] = ()) -> list[Pairing]:
    """The latest training and the latest evaluations that both runs have on common tasks, the newer first.

    Only rows of one iteration and one purpose are paired: those of other policies or of another evaluation
    would differ for that alone. Tasks that are `others` in one of the runs are left out. StageError if there
    are none.
    """
    left, right = _visits(a, others), _visits(b)
    common = [visit for visit in left.keys() & right.keys() if left[visit] & right[visit]]
    train = [visit for visit in common if visit[1] == "train"]
    held = [visit for visit in common if visit[1] != "train"]
    if not common:
        raise StageError("Two of the runs have no scored task in common at the same iteration, so there is "
                         "nothing to compare in pairs. Evaluate both at the same iteration on the same "
                         "split: rollout RUN --eval --split NAME --label NAME --iteration I, then score "
                         "RUN")
    latest = max((iteration for iteration, purpose in left.keys() | right.keys() if purpose == "train"),
                 default=-1)
    chosen = [max(train)] if train else []
    chosen += [visit for visit in held if visit[0] == max(held)[0]]
    chosen.sort(key=lambda visit: (-visit[0], visit[1] == "train", visit[1]))
    return [_pairing(a, b, iteration, purpose, latest, others) for iteration, purpose in chosen]


def unpaired(a: Connection, b: Connection, names: list[str]) -> str:
    """Which evaluations, the latest, have no pair as they are named otherwise; empty where there are none."""
    left, right = _visits(a), _visits(b)
    apart = [(visit[0], visit[1], other[1]) for visit in left.keys() - right.keys()
             for other in right.keys() - left.keys()
             if visit[0] == other[0] and "train" not in (visit[1], other[1]) and left[visit] & right[other]]
    if not apart:
        return ""
    latest = max(apart)[0]
    sides = (sorted({f"'{each[side]}'" for each in apart if each[0] == latest}) for side in (1, 2))
    mine, theirs = (f"{', '.join(own)} of {name}" for own, name in zip(sides, names, strict=True))
    return (f"At iteration {latest} {mine} and {theirs} have tasks in common, and are not paired because "
            "their names differ. Evaluate one of the runs by the name that the other has: rollout RUN --eval "
            f"--split NAME --label NAME --iteration {latest}, then score RUN.")


def _visits(run: Connection, others: Collection[str] = ()) -> dict[tuple[int, str], set[str]]:
    """The tasks of each iteration and purpose, but for `others`."""
    return {(row["iteration"], row["purpose"]): set(row["tasks"]).difference(others)
            for row in rows_of(run, VISITS_SQL)}


def _pairing(a: Connection, b: Connection, iteration: int, purpose: str, latest: int,
             others: Collection[str]) -> Pairing:
    query = Pairing(iteration, purpose, [], latest).sql
    left, right = ({row["task_id"]: row["c"] / row["n"] for row in rows_of(run, query)} for run in (a, b))
    pairs = [{"task": task, "a": left[task], "b": right[task]}
             for task in sorted((left.keys() & right.keys()).difference(others))]
    return Pairing(iteration, purpose, pairs, latest)


def sign_test(differences: list[float]) -> float:
    """Two-sided p-value that gains and losses are equally likely; ties left out."""
    gains, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, least = gains + losses, min(gains, losses)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n) if n else 1.0
