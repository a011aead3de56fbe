"""Tasks that two runs share, in pairs: which rows are paired, and the result."""

from typing import Any, NamedTuple

from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, counted

MOST_NAMED = 5  # tasks
# For training the latest common iteration, for evaluations all of the latest. Only rows of one iteration and
# purpose are paired: rows of other policies or evaluations would differ for that reason alone.
PAIRED_SQL = """\
SELECT DISTINCT iteration, purpose FROM compare_runs($1, $2) WHERE turn_of(purpose) = 1
QUALIFY iteration = max(iteration) OVER (PARTITION BY purpose = 'train')
ORDER BY iteration DESC, purpose = 'train', purpose"""
GAIN_SQL = "FROM gains_of_runs($1, $2) WHERE iteration = $3 AND purpose = $4"
TASKS_SQL = """\
SELECT task_id, rate_a, rate_b, gain FROM compare_runs('{first}', '{other}')
WHERE iteration = {iteration} AND purpose = '{purpose}' ORDER BY task_id"""
OTHERS_SQL = """\
SELECT task_id FROM (FROM tasks WHERE run = $1) AS a JOIN (FROM tasks WHERE run = $2) AS b USING (task_id)
WHERE a.payload <> b.payload ORDER BY task_id"""
LATEST_SQL = """\
SELECT coalesce(max(iteration), -1) AS latest FROM iteration_stats
WHERE purpose = 'train' AND run IN ($1, $2)"""
VERDICTS = {True: "beyond chance", False: "within chance", None: "too little to tell"}


class Pairing(NamedTuple):
    """The results of two runs on the same tasks at one iteration, for one purpose: a row of gains_of_runs."""

    names: tuple[str, str]
    row: dict[str, Any]
    latest: int         # the latest training iteration that either run has scored; -1 without any

    @property
    def title(self) -> str:
        """Which rows are paired."""
        purpose = self.row["purpose"]
        kind = "Training" if purpose == "train" else f"Evaluation '{purpose}'"
        return f"{kind} at iteration {self.row['iteration']}"

    @property
    def remark(self) -> str:
        """A caveat about the numbers; empty if there is none."""
        if self.row["iteration"] >= self.latest:
            return ""
        if self.row["purpose"] == "train":
            return f"The latest iteration that both runs have scored; one continues to {self.latest}."
        return (f"Older than the latest training iteration, {self.latest}: it says nothing of what was "
                "learnt since.")

    @property
    def interval(self) -> str:
        """The 95% interval of the gain over tasks; none for a single task."""
        return "" if self.row["low"] is None else f"{self.row['low']:+.3f} .. {self.row['high']:+.3f}"

    @property
    def sentence(self) -> str:
        """The gain of a run over the first on paired tasks, and whether it is beyond chance."""
        first, other = self.names
        interval = f" [{self.interval}]" if self.interval else ""
        return (f"{other} against {first}, {self.title}: pass@1 {self.row['gain']:+.3f}{interval} over "
                f"{counted(self.row['num_tasks'], 'task')}, {VERDICTS[self.row['beyond_chance']]}.")

    @property
    def sql(self) -> str:
        """The query of the tasks."""
        first, other, purpose = (text.replace("'", "''") for text in (*self.names, self.row["purpose"]))
        return TASKS_SQL.format(first=first, other=other, iteration=self.row["iteration"], purpose=purpose)


def find_pairings(connection: Connection, first: str, other: str) -> list[Pairing]:
    """The latest training and evaluations that both runs have on common tasks, newest first."""
    [row] = rows_of(connection, LATEST_SQL, [first, other])
    pairings = [Pairing((first, other), gain, row["latest"])
                for each in rows_of(connection, PAIRED_SQL, [first, other])
                for gain in rows_of(connection, GAIN_SQL, [first, other, *each.values()])]
    if not pairings:
        raise StageError("Two of the runs have no scored task in common at the same iteration, so there is "
                         "nothing to compare in pairs. Evaluate both at the same iteration on the same "
                         "split: rollout RUN --eval --split NAME --label NAME --iteration I, then score "
                         "RUN")
    return pairings


def other_tasks(connection: Connection, first: str, other: str) -> str:
    """Tasks with the same id but other content than in the first run."""
    others = [row["task_id"] for row in rows_of(connection, OTHERS_SQL, [first, other])]
    shown = ", ".join(others[:MOST_NAMED]) + (" .." if len(others) > MOST_NAMED else "")
    return (f"{counted(len(others), 'task')} with the same name in {first} and {other} but other contents, "
            f"not paired: {shown}." if others else "")
