"""Questions over a large synthetic run: this warehouse against polars and against DuckDB over JSONL.zst.

    python -m benchmarks.warehouse --folder /tmp/bench                # 1,000 iterations, 10.24M samples
    python -m benchmarks.warehouse --folder /tmp/small --iterations 50

The run is built once and kept in the folder. Times are the best of three with warm page cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import zstandard
from tqdm import tqdm

from warehouse.commit import commit_json
from warehouse.database import connect, run_query
from warehouse.rollup import write_rollup
from warehouse.schema import SCHEMA_VERSION, arrow_schema
from warehouse.store import Warehouse, open_warehouse

TASKS, GROUP = 320, 32
ROWS = TASKS * GROUP
SCORER = "bench-1"
BODY_ITERATIONS = 4  # iterations that have completions with token ids, logprobs and text
JSON_ITERATIONS = 20  # iterations written as JSONL too; its times are for these alone
WORDS = [
    "np",
    "grid",
    "for",
    "in",
    "range",
    "(",
    ")",
    ":",
    "return",
    "a",
    "=",
    "x",
    "y",
    "[",
    "]",
    "if",
    "+",
    "1",
    "0",
    "rot90",
    "where",
    "shape",
    "def",
    "import",
    "numpy",
    "copy",
    "zeros",
    "ones",
    "kron",
    ",",
]


def build(folder: Path, iterations: int) -> Warehouse:
    """The synthetic run, written through the storage interface; parts that exist are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    commit_json(
        folder / "warehouse.json", {"schema_version": SCHEMA_VERSION, "run_id": "bench", "model": "base"}
    )
    warehouse = open_warehouse(folder)
    for iteration in tqdm(range(iterations), desc="writing samples", unit="iteration", disable=None):
        keys = {"iteration": iteration, "purpose": "train", "scorer": SCORER}
        stage = warehouse.stage("score", iteration=iteration, purpose="train", scorer=SCORER)
        if not stage.is_complete():
            warehouse.write_part("samples", 0, samples(iteration), **keys)
            stage.complete({"seconds": 1.0})
            warehouse.stage("train", iteration=iteration).complete({"seconds": 1.0, "scorer": SCORER})
    for iteration in range(min(BODY_ITERATIONS, iterations)):
        stage = warehouse.stage("rollout", iteration=iteration, purpose="train")
        if not stage.is_complete():
            warehouse.write_part(
                "completions", 0, completions(iteration), iteration=iteration, purpose="train"
            )
            stage.complete({"seconds": 1.0})
    return warehouse


def keyed(iteration: int, table: str, columns: dict[str, object]) -> pa.Table:
    """A table of the schema: keys and `columns` given, everything else null."""
    task = np.repeat(np.arange(TASKS), GROUP)
    given = {"iteration": np.full(ROWS, iteration, np.int32), "purpose": pa.array(["train"]).take([0] * ROWS),
             "task_id": pa.array([f"task-{number:04d}" for number in range(TASKS)]).take(pa.array(task)),
             "sample_index": np.tile(np.arange(GROUP, dtype=np.int32), TASKS),
             "group_id": pa.array([f"{iteration}/{number}" for number in range(TASKS)]).take(pa.array(task)),
             **columns}
    return pa.table({field.name: pa.array(given[field.name], field.type) if isinstance(given.get(field.name),
                     np.ndarray) else given.get(field.name, pa.nulls(ROWS, field.type))
                     for field in arrow_schema(table)})


def samples(iteration: int) -> pa.Table:
    """One iteration of scored rows: tasks of different ease, lengths, a few truncated and looping."""
    random = np.random.default_rng(iteration)
    ease = np.repeat(np.random.default_rng(0).beta(0.6, 1.4, TASKS), GROUP)
    right = random.random(ROWS) < ease
    tokens = np.minimum(random.lognormal(5.9, 0.5, ROWS), 1024).astype(np.int32)
    truncated = tokens == 1024
    right &= ~truncated
    names = pa.array([f"{number:016x}" for number in range(64)])
    return keyed(
        iteration,
        "samples",
        {
            "scorer": pa.array([SCORER]).take([0] * ROWS),
            "split": pa.array(["train"]).take([0] * ROWS),
            "policy_version": np.full(ROWS, iteration, np.int32),
            "finish_reason": pa.array(["stop", "length"]).take(pa.array(truncated.astype(int))),
            "truncated": truncated,
            "num_prompt_tokens": np.full(ROWS, 4000, np.int32),
            "num_completion_tokens": tokens,
            "reward": np.where(right, 10.0, 1 + 3 * random.random(ROWS)),
            "correct": right,
            "valid_code": ~truncated,
            "valid_outputs": ~truncated & (random.random(ROWS) > 0.1),
            "train_pixel_score": random.random(ROWS),
            "train_correct_grids": right.astype(float),
            "train_is_correct": right,
            "test_pixel_score": random.random(ROWS),
            "test_correct_grids": right.astype(float),
            "test_is_correct": right,
            "fingerprint": names.take(pa.array(random.integers(0, 64, ROWS))),
            "cpu_seconds": random.random(ROWS),
            "wall_seconds": random.random(ROWS),
            "logprob_sum": -0.3 * tokens,
            "nll_sampled": random.normal(0.3, 0.02, ROWS),
            "unique_token_ratio": random.normal(0.4, 0.05, ROWS),
            "ngram3_unique_ratio": random.normal(0.8, 0.05, ROWS),
            "ngram4_unique_ratio": random.normal(0.9, 0.05, ROWS),
            "ngram4_top_share": random.random(ROWS) / 50,
            "loop_tokens": (random.random(ROWS) < 0.01).astype(np.int32) * 100,
            "sandbox_tier": pa.array(["B"]).take([0] * ROWS),
        },
    )


def completions(iteration: int) -> pa.Table:
    """One iteration of completions of about 400 tokens, their logprobs, and a text of as many words."""
    random = np.random.default_rng(10_000 + iteration)
    lengths = np.minimum(random.lognormal(5.9, 0.5, ROWS), 1024).astype(np.int32)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    # Zipf ids and a heavy-tailed -logprob with one token in twenty certain, as a trained policy gives them.
    ids = np.minimum(random.zipf(1.3, lengths.sum()), 128_000).astype(np.int32)
    certain = random.random(len(ids)) < 0.06
    logprobs = np.where(certain, 0, -random.lognormal(-4.5, 2.6, len(ids)).clip(0, 20)).astype(np.float32)
    chosen = random.zipf(1.4, lengths.sum()) % len(WORDS)
    ends = np.cumsum(lengths)
    text = [
        " ".join(WORDS[word] for word in chosen[end - size : end])
        for end, size in zip(ends, lengths, strict=True)
    ]
    return keyed(iteration, "completions", {
        "completion": pa.array(text), "completion_ids": pa.ListArray.from_arrays(offsets, pa.array(ids)),
        "behaviour_logprobs": pa.ListArray.from_arrays(offsets, pa.array(logprobs)),
        "num_completion_tokens": lengths, "num_prompt_tokens": np.full(ROWS, 4000, np.int32),
        "seed": random.integers(0, 1 << 60, ROWS), "policy_version": np.full(ROWS, iteration, np.int32),
        "temperature": np.ones(ROWS, np.float32), "max_tokens": np.full(ROWS, 1024, np.int32)})


def write_json(warehouse: Warehouse, iterations: int) -> Path:
    """The scored rows of some iterations as JSONL.zst, one file each, the way other trainers log them."""
    folder = warehouse.root.parent / f"{warehouse.root.name}-jsonl"
    folder.mkdir(exist_ok=True)
    for iteration in range(iterations):
        path = folder / f"{iteration:05d}.jsonl.zst"
        if not path.exists():
            rows = warehouse.read("samples", iteration=iteration, purpose="train", scorer=SCORER).to_pylist()
            lines = "\n".join(json.dumps({k: v for k, v in row.items() if v is not None}) for row in rows)
            path.write_bytes(zstandard.compress(lines.encode(), 3))
    return folder


def best(work: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of `times` runs."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def polars_passes(frame: pl.LazyFrame) -> pl.DataFrame:
    """The same pass@k for k = 1, 2, 4 .. 32 in polars."""
    groups = frame.group_by("iteration", "task_id").agg(n=pl.len().cast(pl.Int64),
                                                        c=pl.col("correct").sum().cast(pl.Int64))
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


def answers(warehouse: Warehouse, iterations: int) -> Iterator[tuple[str, float]]:
    """Every question with its best time."""
    connection = connect(warehouse)

    def ask(query: str) -> Callable[[], object]:
        def work() -> object:
            relation = run_query(connection, query)
            assert relation is not None
            return relation.fetchall()
        return work

    yield "connect: list files, make all views", best(lambda: connect(warehouse))
    middle = iterations // 2
    yield "pass@k of all iterations", best(ask("SELECT iteration, k, pass_at_k FROM pass_curve"))
    yield "pass@k of one iteration", best(ask(f"SELECT k, pass_at_k FROM pass_curve WHERE iteration = "
                                              f"{middle}"))
    yield "all collapse columns of all iterations", best(ask("FROM iteration_stats"))
    yield "collapse columns of one iteration", best(ask(f"FROM iteration_stats WHERE iteration = {middle}"))
    yield "alarms", best(ask("FROM alarms"))
    yield "task history", best(ask("FROM task_history"))
    yield "20 outliers of one iteration", best(ask(f"FROM outliers({middle}, num := 20)"))
    yield "one completion by key, with lists", best(ask("FROM one_completion(2, 'task-0123', 7)"))
    yield "last 400 characters of 5 truncated completions", best(ask("FROM truncated(2)"))
    yield "warehouse rollup, once", best(lambda: write_rollup(warehouse), times=1)
    connection = connect(warehouse)

    def ask_rollup(query: str) -> Callable[[], object]:
        return lambda: connection.execute(query).fetchall()

    yield "rollup: pass@k of all iterations", best(ask_rollup("SELECT iteration, k, pass_at_k FROM "
                                                              "pass_curve"))
    yield "rollup: all collapse columns of all iterations", best(ask_rollup("FROM iteration_stats"))
    yield "rollup: alarms", best(ask_rollup("FROM alarms"))
    yield "rollup: task history", best(ask_rollup("FROM task_history"))
    pattern = f"{warehouse.root}/samples/*/*/*/part-*.parquet"
    frame = pl.scan_parquet(pattern, hive_partitioning=True)
    yield "polars: pass@k of all iterations", best(lambda: polars_passes(frame))
    yield "polars: 13 collapse columns of all iterations", best(lambda: polars_collapse(frame))
    folder = write_json(warehouse, min(JSON_ITERATIONS, iterations))
    count = len(list(folder.glob("*.zst")))
    rows = f"read_json('{folder}/*.jsonl.zst', format = 'newline_delimited')"
    yield f"DuckDB over JSONL.zst: pass@k, {count} iterations alone", best(ask(
        "SELECT iteration, k, avg(pass_at_k(n, c, k)) FROM (SELECT iteration, task_id, count(*) AS n, "
        "count(*) "
        f"FILTER (correct) AS c FROM {rows} GROUP BY ALL), (SELECT unnest([1, 2, 4, 8, 16, 32]) AS k) "
        "GROUP BY ALL"))
    first = range(count)
    yield f"the same {count} iterations here", best(ask(
        f"SELECT iteration, k, pass_at_k FROM pass_curve WHERE iteration < {len(first)}"))


def sizes(warehouse: Warehouse, iterations: int) -> Iterator[tuple[str, str]]:
    """Bytes on disk, and rates of writing and reading completions."""
    body = min(BODY_ITERATIONS, iterations)
    paths = [path for iteration in range(body)
             for path in warehouse.parts("completions", iteration=iteration, purpose="train")]
    stored = warehouse.read("completions", iteration=0, purpose="train")
    mean = sum(stored["num_completion_tokens"].to_pylist()) / stored.num_rows
    yield (
        f"bytes per completion of {mean:.0f} tokens, text included",
        f"{sum(p.stat().st_size for p in paths) / body / ROWS:,.0f}",
    )
    scored = list(warehouse.root.glob("samples/*/*/*/part-*.parquet"))
    yield "bytes per scored row", f"{sum(p.stat().st_size for p in scored) / len(scored) / ROWS:,.0f}"
    reading = best(lambda: warehouse.read("completions", iteration=0, purpose="train"))
    yield "completions read per second", f"{ROWS / reading:,.0f}"
    target = warehouse.root / "completions" / "written.parquet"

    def write() -> None:
        from warehouse.parts import write_part
        target.unlink(missing_ok=True)
        write_part(target, "completions", stored, {})

    writing = best(write)
    target.unlink()
    yield "completions written per second", f"{ROWS / writing:,.0f}"


def main() -> None:
    """Build the run and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=1000)
    options = parser.parse_args()
    warehouse = build(options.folder, options.iterations)
    print(f"{options.iterations:,} iterations, {options.iterations * ROWS:,} samples\n\n| question | "
          f"seconds |\n|---|---|")
    for question, seconds in answers(warehouse, options.iterations):
        print(f"| {question} | {seconds:.3f} |", flush=True)
    print("\n| measure | value |\n|---|---|")
    for name, value in sizes(warehouse, options.iterations):
        print(f"| {name} | {value} |", flush=True)


if __name__ == "__main__":
    main()
