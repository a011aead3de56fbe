"""Seconds and bytes of a large synthetic run: questions in SQL, in polars, and over JSONL.zst.

    python -m benchmarks.warehouse --folder /tmp/bench                # 1,000 iterations, 10.24M samples
    python -m benchmarks.warehouse --folder /tmp/small --iterations 50

The run is built once and kept in the folder. Times are the best of three or, of short questions, of as
many as a second holds, with warm page cache. Beside other work the CPU seconds, over the cores, say more
than the seconds.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from benchmarks.warehouse_rows import GROUP, ROWS, SCORER, TASKS, completions, prompts, samples, tasks
from warehouse.sql.database import connect, rows_of
from warehouse.sql.rollup import write_rollup
from warehouse.store.checksums import tasks_sha256
from warehouse.store.commit import commit_json
from warehouse.store.parts import write_part
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import SCHEMA_VERSION

BODY_ITERATIONS = 4  # iterations that have prompts and completions with token ids, logprobs and text
JSON_ITERATIONS = 20  # iterations written as JSONL too; its times are for these alone
COLLAPSE_NEEDS = (
    "iteration", "purpose", "scorer", "group_id", "task_id", "policy_version", "first_output",
    "reward", "correct", "truncated", "valid_code", "valid_outputs", "error_class", "num_completion_tokens",
    "nll_sampled", "unique_token_ratio", "ngram3_unique_ratio", "ngram4_unique_ratio", "loop_tokens")
JSON_PASSES = """
SELECT iteration, k, avg(pass_at_k(n, c, k))
FROM (SELECT iteration, task_id, count(*) AS n, count(*) FILTER (correct) AS c FROM {rows} GROUP BY ALL),
     (SELECT unnest([1, 2, 4, 8, 16, 32]) AS k)
GROUP BY ALL"""
Question = tuple[str, Callable[[], object], int]  # what is asked, how, how many times


def build(folder: Path, iterations: int, bodies: int = BODY_ITERATIONS) -> Warehouse:
    """The synthetic run, written through the storage interface; stages that are complete are kept."""
    if not (folder / "warehouse.json").exists():
        facts = {"schema_version": SCHEMA_VERSION, "run_id": "bench", "model": "base",
                 "tasks_sha256": tasks_sha256([tasks()])}
        write_part(folder / "tasks" / "part-00000.parquet", "tasks", tasks(),
                   {"run_id": "bench", "part_uuid": "tasks"})
        Warehouse(folder, facts).log.make(facts)
        commit_json(folder / "warehouse.json", facts)
    warehouse = open_warehouse(folder)
    for iteration in tqdm(range(iterations), desc="writing samples", unit="iteration", disable=None):
        keys: dict[str, Any] = {"iteration": iteration, "purpose": "train"}
        rollout = warehouse.stage("rollout", **keys)
        if not rollout.is_complete():
            rollout.settle({})
            if iteration < bodies:
                warehouse.write_part("prompts", 0, prompts(iteration), **keys)
                warehouse.write_part("completions", 0, completions(iteration), **keys)
            rollout.complete({"seconds": 1.0})
        score = warehouse.stage("score", **keys, scorer=SCORER)
        if not score.is_complete():
            score.settle({}, reads=[rollout.life.begun] if rollout.life else [])
            warehouse.write_part("samples", 0, samples(iteration), **keys, scorer=SCORER)
            score.complete({"seconds": 1.0})
    return warehouse


def write_json(warehouse: Warehouse, iterations: int) -> Path:
    """The scored rows of some iterations as JSONL.zst, one file each, the way other trainers log them."""
    folder = warehouse.root.parent / f"{warehouse.root.name}-jsonl"
    folder.mkdir(exist_ok=True)
    for iteration in range(iterations):
        path = folder / f"{iteration:05d}.jsonl.zst"
        if not path.exists():
            rows = warehouse.read("samples", iteration=iteration, purpose="train", scorer=SCORER).to_pylist()
            lines = "\n".join(json.dumps({k: v for k, v in row.items() if v is not None}) for row in rows)
            path.write_bytes(pa.Codec("zstd", 3).compress(lines.encode(), asbytes=True))
    return folder


def best(work: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """Seconds of the fastest of `times` runs, and the least CPU seconds of all threads together.

    Work that takes less than a second is repeated for one, unless once is all that was asked.
    """
    taken: list[float] = []
    used: list[float] = []
    while len(taken) < times or (times > 1 and sum(taken) < 1):
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        taken.append(time.perf_counter() - began)
        used.append(time.process_time() - began_cpu)
    return min(taken), min(used)


def polars_passes(frame: pl.LazyFrame) -> pl.DataFrame:
    """The same pass@k for k = 1, 2, 4 .. 32 in polars."""
    groups = frame.group_by("iteration", "task_id").agg(
        n=pl.len().cast(pl.Int64), c=pl.col("correct").sum().cast(pl.Int64))
    columns = []
    for k in (1, 2, 4, 8, 16, 32):
        wrong = pl.col("n") - pl.col("c")
        chance = pl.lit(1.0)
        for i in range(k):
            chance = chance * ((wrong - i).clip(0) / (pl.col("n") - i))
        columns.append((1 - chance).mean().alias(f"pass@{k}"))
    return groups.group_by("iteration").agg(columns).sort("iteration").collect(engine="streaming")


def polars_collapse(frame: pl.LazyFrame) -> pl.DataFrame:
    """The per-sample part of the collapse columns in polars."""
    tokens = pl.col("num_completion_tokens")
    return (
        frame.group_by("iteration")
        .agg(
            pl.col("reward").mean(),
            pl.col("truncated").mean(),
            tokens.mean().alias("tokens"),
            tokens.quantile(0.05).alias("p05"),
            tokens.median().alias("p50"),
            tokens.quantile(0.95).alias("p95"),
            pl.col("correct").mean(),
            pl.col("valid_code").mean(),
            pl.col("valid_outputs").mean(),
            pl.col("nll_sampled").mean(),
            pl.col("unique_token_ratio").mean(),
            pl.col("ngram4_unique_ratio").mean(),
            pl.corr("num_completion_tokens", "reward").alias("corr"),
        )
        .sort("iteration")
        .collect(engine="streaming")
    )


def sql(warehouse: Warehouse) -> Callable[[str], Callable[[], object]]:
    """Makes of a query the work of asking it, over one connection."""
    connection = connect(warehouse)

    def ask(query: str) -> Callable[[], object]:
        return lambda: rows_of(connection, query)
    return ask


def questions(warehouse: Warehouse, iterations: int) -> Iterator[Question]:
    """Everything that is timed, in order."""
    shutil.rmtree(warehouse.root / "iterations", ignore_errors=True)  # the first answers are without a rollup
    ask, middle = sql(warehouse), iterations // 2
    scan = ", ".join(f"max({column})" for column in COLLAPSE_NEEDS)
    yield "connect: list files, make all views", lambda: connect(warehouse), 3
    yield "pass@k of all iterations", ask("SELECT iteration, k, pass_at_k FROM pass_curve"), 3
    yield "pass@k of one iteration", ask(f"FROM pass_curve WHERE iteration = {middle}"), 3
    yield "all collapse columns of all iterations", ask("FROM iteration_stats"), 3
    yield "collapse columns of one iteration", ask(f"FROM iteration_stats WHERE iteration = {middle}"), 3
    yield "the scan alone that the collapse columns need", ask(f"SELECT {scan} FROM samples"), 3
    yield "alarms", ask("FROM fired_signals"), 3
    yield "task history", ask("FROM task_history"), 3
    yield "one completion by key, with lists", ask("FROM one_completion(2, 'task-0123', 7)"), 3
    frame = pl.scan_parquet(f"{warehouse.root}/samples/*/*/*/part-*.parquet", hive_partitioning=True)
    yield "polars: pass@k of all iterations", lambda: polars_passes(frame), 3
    yield "polars: 13 collapse columns of all iterations", lambda: polars_collapse(frame), 3
    count = min(JSON_ITERATIONS, iterations)
    rows = f"read_json('{write_json(warehouse, count)}/*.jsonl.zst', format = 'newline_delimited')"
    yield f"DuckDB over JSONL.zst: pass@k, {count} iterations alone", ask(JSON_PASSES.format(rows=rows)), 3
    yield (f"the same {count} iterations here",
           ask(f"SELECT iteration, k, pass_at_k FROM pass_curve WHERE iteration < {count}"), 3)
    yield "warehouse rollup, once", lambda: write_rollup(warehouse), 1
    ask = sql(warehouse)
    yield "rollup: pass@k of all iterations", ask("SELECT iteration, k, pass_at_k FROM pass_curve"), 3
    yield "rollup: all collapse columns of all iterations", ask("FROM iteration_stats"), 3
    yield "rollup: alarms", ask("FROM fired_signals"), 3
    yield "rollup: task history", ask("FROM task_history"), 3


def sizes(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """Bytes on disk, and rates of writing and reading completions."""
    keys: dict[str, Any] = {"iteration": 0, "purpose": "train"}
    stored = warehouse.read("completions", **keys)
    mean = sum(stored["num_completion_tokens"].to_pylist()) / ROWS
    part = warehouse.parts("completions", **keys)[0]
    yield f"bytes per completion of {mean:.0f} tokens, text included", f"{part.stat().st_size / ROWS:,.0f}"
    held = pq.read_metadata(part)
    chunks = [held.row_group(group).column(index) for group in range(held.num_row_groups)
              for index in range(held.num_columns)]
    for name in ("behaviour_logprobs", "completion_ids", "completion"):
        size = sum(chunk.total_compressed_size for chunk in chunks
                   if chunk.path_in_schema.split(".")[0] == name)
        yield f"of these {name}", f"{size / ROWS:,.0f}"
    asked = warehouse.parts("prompts", **keys)[0].stat().st_size
    yield f"bytes per completion for its prompt, stored once per {GROUP}", f"{asked / TASKS / GROUP:,.0f}"
    scored = list(warehouse.root.glob("samples/*/*/*/part-*.parquet"))
    yield "bytes per scored row", f"{sum(path.stat().st_size for path in scored) / len(scored) / ROWS:,.0f}"
    reading, _ = best(lambda: warehouse.read("completions", **keys))
    yield "completions read per second", f"{ROWS / reading:,.0f}"
    target = warehouse.root / "completions" / "written.parquet"

    def write() -> None:
        target.unlink(missing_ok=True)
        write_part(target, "completions", stored, {})

    writing, _ = best(write)
    target.unlink()
    yield "completions written per second", f"{ROWS / writing:,.0f}"


def main() -> None:
    """Build the run and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--bodies", type=int, default=BODY_ITERATIONS,
                        help="iterations with token ids and text")
    options = parser.parse_args()
    warehouse = build(options.folder, options.iterations, options.bodies)
    print(f"{options.iterations:,} iterations, {options.iterations * ROWS:,} samples\n\n| question | "
          f"seconds | CPU seconds |\n|---|---|---|")
    for question, work, times in questions(warehouse, options.iterations):
        seconds, cpu_seconds = best(work, times)
        print(f"| {question} | {seconds:.3f} | {cpu_seconds:.3f} |", flush=True)
    print("\n| measure | value |\n|---|---|")
    for name, value in sizes(warehouse):
        print(f"| {name} | {value} |", flush=True)


if __name__ == "__main__":
    main()
