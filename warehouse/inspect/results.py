"""Result tables as published ARC runs have them: shares per task, then means."""

from typing import Any

from warehouse.sql.catalog import condition, of_purposes
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError

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


def paired_interval(connection: Connection, gains: list[float]) -> tuple[float, float] | None:
    """95% bootstrap interval of the mean gain over tasks; None of one, which says nothing of others."""
    [row] = rows_of(connection, "SELECT paired_interval($gains::DOUBLE[]) AS bounds", {"gains": gains})
    return tuple(row["bounds"]) if row["bounds"] else None
