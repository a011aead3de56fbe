"""What a number of completions per task is worth: all as first turns, or in equal shares of every turn.

    python -m examples.turns.budget RUN 128 [--purpose eval] [--iteration I] [--format markdown]
"""

from itertools import pairwise
from statistics import fmean
from typing import Any

import click

import warehouse
from warehouse.experiments.comparison import paired_interval
from warehouse.inspect.render import WRITERS
from warehouse.options import shows_errors
from warehouse.sql.catalog import condition, of_purposes
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, counted

COMPARED = ("same program", "is_correct", "test pass rate")
# Each completion with its turn, its place among those of its task and turn, and the place of what it answers.
TURNS = """
CREATE OR REPLACE TEMP TABLE turns AS
SELECT samples.*, base_purpose(purpose) AS base, turn_of(purpose) AS turn, parent_sample_index AS parent,
       row_number() OVER (PARTITION BY iteration, purpose, task_id ORDER BY sample_index) AS place
FROM (FROM samples WHERE {where}) AS samples
LEFT JOIN (SELECT iteration, purpose, group_id, parent_sample_index FROM prompts)
    USING (iteration, purpose, group_id)"""
ARMS = """
CREATE OR REPLACE TEMP TABLE arms AS
SELECT turns.* REPLACE (base || ' ' || num_turns AS purpose)
FROM turns
JOIN (SELECT DISTINCT iteration, base, turn AS num_turns FROM turns) USING (iteration, base)
WHERE turn <= num_turns AND place * num_turns <= {budget}"""
KEYED = "SELECT split_part(purpose, ' ', 1) AS base, split_part(purpose, ' ', 2)::INTEGER AS arm, *"
GAINS = """
SELECT max("{name}") FILTER (arm = {more}) - max("{name}") FILTER (arm = {fewer}) AS gain
FROM tasks_of_arms WHERE iteration = {iteration} AND base = '{base}'
GROUP BY task_id HAVING gain IS NOT NULL ORDER BY task_id"""
# By a hash, so that it comes out the same every time.


def budget_table(connection: Connection, budget: int,
                 **chosen: tuple[Any, ...]) -> tuple[list[str], list[list[Any]], list[str]]:
    """Names and rows of the result table with `budget` completions of each task, and what turns gain.

    A row per iteration, purpose and number of turns: 128, 64 + 64, .. The gains are means over tasks with a
    95% paired bootstrap interval. StageError where a task has fewer first turns, where no purpose has a later
    turn, or where a turn answers completions outside of its share, which the budget would not have sampled.
    """
    purposes = chosen.pop("purpose", ())
    of_bases = of_purposes(purposes, "base_purpose(purpose)")
    connection.execute(TURNS.format(where=f"{condition(chosen)} AND {of_bases}"))
    connection.execute("DELETE FROM turns WHERE (iteration, base) NOT IN "
                       "(SELECT (iteration, base) FROM turns WHERE turn > 1)")
    _check(connection, budget)
    connection.execute(ARMS.format(budget=budget))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE tasks_of_arms AS {KEYED} FROM arc_tasks_of('arms')")
    rows = rows_of(connection, f"{KEYED} FROM arc_results_of('arms') ORDER BY iteration, base, arm")
    names = ["iteration", "purpose", "completions", *list(rows[0])[4:]]
    table = [[row["iteration"], row["base"], _shares(budget, row["arm"]), *list(row.values())[4:]]
             for row in rows]
    lines = [line for fewer, more in pairwise(rows)
             if (fewer["iteration"], fewer["base"]) == (more["iteration"], more["base"])
             for line in _gains(connection, budget, fewer, more)]
    return names, table, lines


def _check(connection: Connection, budget: int) -> None:
    [held] = rows_of(connection, """
        SELECT count(*) AS num, min(first) AS least, arg_min(purpose, first) AS purpose
        FROM (SELECT max(place) FILTER (turn = 1) AS first, any_value(base) AS purpose FROM turns
              GROUP BY iteration, base, task_id)""")
    if not held["num"]:
        raise StageError("No completion that fits is of a second turn. Sample them with `rollout --turn 2`, "
                         "then `score`.")
    if held["least"] is None or held["least"] < budget:
        raise StageError(f"A task of '{held['purpose']}' has {held['least'] or 0} first turns: {budget} of "
                         "them cannot be compared with. Sample more, give a smaller BUDGET, or keep other "
                         "rows: --purpose eval, --iteration I.")
    outside = rows_of(connection, f"""
        SELECT base, turn, max(parent) AS parent, {budget} // any_value(turns) AS share
        FROM turns
        JOIN (SELECT iteration, base, max(turn) AS turns FROM turns GROUP BY ALL) USING (iteration, base)
        WHERE turn > 1 AND parent >= {budget} // turns GROUP BY base, turn""")
    for row in outside:
        raise StageError(f"Turn {row['turn']} of '{row['base']}' answers completion {row['parent']} of a "
                         f"task; with {budget} in all only the first {row['share']} would be there. Choose "
                         "parents by --from, with FROM wrong_completions(..) WHERE sample_index < "
                         f"{row['share']}.")


def _shares(budget: int, num_turns: int) -> str:
    return " + ".join([str(budget // num_turns)] * num_turns)


def _gains(connection: Connection, budget: int, fewer: dict[str, Any], more: dict[str, Any]) -> list[str]:
    """How much better the larger number of turns is, task by task."""
    lines = [f"{more['base']} of iteration {more['iteration']}: {_shares(budget, more['arm'])} against "
             f"{_shares(budget, fewer['arm'])}, paired over tasks, with 95% intervals"]
    for name in COMPARED:
        gains = [row["gain"] for row in rows_of(connection, GAINS.format(
            name=name, more=more["arm"], fewer=fewer["arm"], iteration=more["iteration"], base=more["base"]))]
        bounds = paired_interval(connection, gains)
        interval = f" [{bounds[0]:+.4f}, {bounds[1]:+.4f}]" if bounds else ""
        lines.append(f"  {name:<15} {fmean(gains):+.4f}{interval}, better on {sum(g > 0 for g in gains)} of "
                     f"{counted(len(gains), 'task')}, worse on {sum(g < 0 for g in gains)}")
    return lines


@click.command()
@click.argument("run")
@click.argument("budget", type=click.IntRange(min=2))
@click.option("--iteration", multiple=True, type=click.IntRange(min=0), help="Iterations to keep.")
@click.option("--purpose", multiple=True, help="Purposes to keep; eval is every evaluation.")
@click.option("--format", "style", type=click.Choice(["table", "markdown", "csv"]), default="table",
              show_default=True, help="How the rows are written.")
@shows_errors
def main(run: str, budget: int, style: str, **chosen: tuple[Any, ...]) -> None:
    """Compare BUDGET first turns of each task with equal shares of every turn."""
    names, rows, lines = budget_table(warehouse.open(run), budget, **chosen)
    click.echo("\n".join([WRITERS[style](names, rows), *lines]))


if __name__ == "__main__":
    main()
