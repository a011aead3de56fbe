"""Result tables as published ARC runs have them: shares per task, then means; and what turns are worth."""

from itertools import pairwise
from statistics import fmean
from typing import Any

from warehouse.sql.catalog import condition, of_purposes
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, counted

NAMES = {"iteration": "iteration", "purpose": "purpose", "split": "split", "policy": "policy_version",
         "task": "task_id"}
# Per task over its completions; a completion without valid outputs counts as 0 everywhere.
PER_TASK = """
SELECT {keys}, task_id, count(*) AS n,
       avg(valid_code::INTEGER) AS "valid code",
       avg(valid_outputs::INTEGER) AS "valid outputs",
       count(DISTINCT fingerprint) / count(*) AS "unique outputs",
       avg(coalesce(train_pixel_score, 0)) AS "train pixel score",
       avg(coalesce(train_correct_grids, 0)) AS "train correct grids",
       avg(coalesce(train_is_correct, false)::INTEGER) AS "train pass rate",
       bool_or(coalesce(train_is_correct, false))::INTEGER AS "train is_correct",
       avg(coalesce(test_pixel_score, 0)) AS "test pixel score",
       avg(coalesce(test_correct_grids, 0)) AS "test correct grids",
       avg(coalesce(test_is_correct, false)::INTEGER) AS "test pass rate",
       bool_or(coalesce(test_is_correct, false))::INTEGER AS "test is_correct",
       bool_or(coalesce(train_is_correct, false))::INTEGER
           * bool_or(coalesce(test_is_correct, false))::INTEGER AS "is_correct",
       bool_or(coalesce(correct, false))::INTEGER AS "same program"
FROM {rows} WHERE reward IS NOT NULL
GROUP BY {keys}, task_id
"""
MEANS = """
WITH tasks_of AS ({per_task})
SELECT {keys}, count(*)::INTEGER AS tasks, min(n)::INTEGER AS n, max(n)::INTEGER AS "most n",
       {means}
FROM tasks_of GROUP BY {keys} ORDER BY {keys}
"""
COLUMNS = ("valid code", "valid outputs", "unique outputs", "train pixel score", "train correct grids",
           "train pass rate", "train is_correct", "test pixel score", "test correct grids", "test pass rate",
           "test is_correct", "is_correct", "same program")


def result_table(connection: Connection, *, by: tuple[str, ...] = ("iteration", "purpose"),
                 **chosen: tuple[Any, ...]) -> tuple[list[str], list[list[Any]]]:
    """Column names and rows, one per value of `by`; completions of the chosen rows are pooled per task.

    `chosen` maps iteration, purpose, split or policy to the values to keep, all where empty. `is_correct`
    is as published (all train pairs right and all test pairs right, possibly by different programs);
    `same program` asks for one program. `unique outputs` compares at equal n only.
    """
    unknown = set(by) - NAMES.keys()
    if unknown:
        raise StageError(f"Cannot group by {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}.")
    keys = ", ".join(NAMES[key] for key in by if key != "task")
    # Else later turns would be pooled with the first.
    named = "purpose" in by or {*chosen.get("purpose", ())} - {"eval"}
    kept = f"(FROM samples WHERE {where(**chosen)}{'' if named else ' AND turn_of(purpose) = 1'})"
    if "task" in by:
        query = f"SELECT * FROM ({per_task(kept, keys)}) ORDER BY {keys + ', ' if keys else ''}task_id"
    else:
        query = means(per_task(kept, keys), keys)
    rows = rows_of(connection, query)
    if not rows:
        raise StageError("No scored completion fits. Look at what there is: "
                         "SELECT DISTINCT iteration, purpose, split, policy_version FROM samples")
    names = [name for name in rows[0] if name != "everything"]
    return names, [[row[name] for name in names] for row in rows]


def where(**chosen: tuple[Any, ...]) -> str:
    """The condition that rows have one of the chosen values of each key, any where none is chosen."""
    purposes = of_purposes(chosen.pop("purpose", ()))
    return f"{purposes} AND {condition({NAMES[key]: values for key, values in chosen.items()})}"


def per_task(rows: str, keys: str) -> str:
    """The query of a row per task and value of `keys`, columns that `rows` have."""
    text = PER_TASK.format(keys=keys or "1 AS everything", rows=rows)
    return text.replace("GROUP BY 1 AS everything", "GROUP BY everything")


def means(rows: str, keys: str) -> str:
    """The query of the means over tasks of what `per_task` gives."""
    columns = ",\n       ".join(f'avg("{name}") AS "{name}"' for name in COLUMNS)
    return MEANS.format(per_task=rows, keys=keys or "everything", means=columns)


# What a number of completions per task is worth: all as first turns, or in equal shares of every turn.
KEYS = "iteration, base, arm"
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
SELECT turns.* EXCLUDE (purpose), num_turns AS arm
FROM turns
JOIN (SELECT DISTINCT iteration, base, turn AS num_turns FROM turns) USING (iteration, base)
WHERE turn <= num_turns AND place * num_turns <= {budget}"""
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
    connection.execute(TURNS.format(where=f"{where(**chosen)} AND {of_bases}"))
    connection.execute("DELETE FROM turns WHERE (iteration, base) NOT IN "
                       "(SELECT (iteration, base) FROM turns WHERE turn > 1)")
    _check(connection, budget)
    connection.execute(ARMS.format(budget=budget))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE tasks_of_arms AS {per_task('arms', KEYS)}")
    rows = rows_of(connection, means("FROM tasks_of_arms", KEYS))
    names = ["iteration", "purpose", "completions", *list(rows[0])[3:]]
    table = [[row["iteration"], row["base"], _shares(budget, row["arm"]), *list(row.values())[3:]]
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
                         "them cannot be compared with. Sample more, give a smaller --budget, or keep other "
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


def paired_interval(connection: Connection, gains: list[float]) -> tuple[float, float] | None:
    """95% bootstrap interval of the mean gain over tasks; None of one, which says nothing of others."""
    return paired_verdict(connection, gains)[0]


def paired_verdict(connection: Connection,
                   gains: list[float]) -> tuple[tuple[float, float] | None, bool | None]:
    """The interval of the mean gain, and whether it is beyond chance; None where that cannot be told."""
    [row] = rows_of(connection, "SELECT bounds, beyond_chance(bounds, $num) AS beyond "
                                "FROM (SELECT paired_interval($gains::DOUBLE[]) AS bounds)",
                    {"gains": gains, "num": len(gains)})
    return (tuple(row["bounds"]) if row["bounds"] else None), row["beyond"]
