"""The alarms of today asked over what earlier runs of a study stored.

    python -m benchmarks.study.replay FOLDER [TEXT ..]    # all runs, or those named so
"""

import json
import os
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.study.results import history_of, name_of, read_results
from warehouse.inspect.alarms import raised_alarms
from warehouse.sql.database import empty_connection

if TYPE_CHECKING:
    import duckdb

HISTORY = ("iteration_stats", "task_results", "train_steps")     # what signals are computed from
Look = dict[str, list[str]]


def look(connection: "duckdb.DuckDBPyConnection") -> Look:
    """What fires and what is raised once, as `warehouse watch` sees it now: signal@first-last iteration."""
    seen: Look = {"fired": [], "raised": []}
    for alarm in raised_alarms(connection, examples=False):
        seen["fired" if alarm.fired else "raised"].append(
            f"{alarm.signal}@{alarm.first_iteration}-{alarm.last_iteration}")
    return seen


def replay(folder: Path, num: int) -> list[Look]:
    """The looks after the last `num` iterations of the run whose HISTORY lies in `folder`, as Parquet."""
    connection = empty_connection()
    connection.execute("SET VARIABLE now = -1; SET threads = 1")
    for table in HISTORY:
        connection.execute(
            f"CREATE TABLE of_{table} AS (FROM {table} LIMIT 0) UNION ALL BY NAME "
            f"(FROM '{folder}/{table}.parquet');"
            f"CREATE OR REPLACE VIEW {table} AS FROM of_{table} WHERE iteration <= getvariable('now')")
    iterations = connection.execute("SELECT DISTINCT iteration FROM of_iteration_stats ORDER BY 1").fetchall()
    looks = []
    for (now,) in iterations[-num:]:
        connection.execute(f"SET VARIABLE now = {now}")
        looks.append(look(connection))
    return looks


def main(folder: Path, *texts: str) -> None:
    """Put what the alarms of today say into the results of the runs that have a history."""
    results = read_results(folder)
    asked = [result for result in results if history_of(folder, name_of(result)).exists()
             and (not texts or any(text in name_of(result) for text in texts))]
    with Pool(os.cpu_count()) as pool:
        looks = pool.starmap(replay, [(history_of(folder, name_of(result)), len(result["looks"]) or 1)
                                      for result in asked], chunksize=1)
    for result, own in zip(asked, looks, strict=True):
        result["looks"] = own
    lines = "".join(json.dumps(result) + "\n" for result in results)
    (folder / "results.jsonl.new").write_text(lines)
    os.replace(folder / "results.jsonl.new", folder / "results.jsonl")
    print(f"{len(asked)} of {len(results)} runs asked again")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
