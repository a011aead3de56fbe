"""CPU seconds to read and write rows as .jsonl.zst: pyarrow and DuckDB, as the rooms do, zstandard, polars.

    pip install zstandard
    python -m benchmarks.jsonl_zst [--rows 20000] [--tokens 400]
"""

import argparse
import functools
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import zstandard


def make_table(num_rows: int, num_tokens: int) -> pa.Table:
    """Rows as an export has them: an id, a text, token ids and logprobs."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 150_000, (num_rows, num_tokens), dtype=np.int32)
    logprobs = -random.exponential(size=(num_rows, num_tokens)).astype(np.float32)
    return pa.table({"task_id": [f"task-{row % 400}" for row in range(num_rows)],
                     "completion": [" ".join(map(str, row[:80])) for row in ids],
                     "completion_ids": list(ids), "behaviour_logprobs": list(logprobs)})


def write_zstandard(table: pa.Table, path: Path) -> None:
    """Row by row through a compressing stream."""
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as stream:
        for batch in table.to_batches(max_chunksize=512):
            for row in batch.to_pylist():
                stream.write(json.dumps(row).encode() + b"\n")


def write_duckdb(table: pa.Table, path: Path) -> None:
    """As `warehouse export` does."""
    connection = duckdb.connect().register("rows", table)
    connection.execute(f"COPY (FROM rows) TO '{path}' (FORMAT json, COMPRESSION zstd)")


def write_polars(table: pa.Table, path: Path) -> None:
    """polars' JSON lines, compressed by zstandard."""
    lines = io.BytesIO()
    pl.DataFrame(pl.from_arrow(table)).write_ndjson(lines)
    path.write_bytes(zstandard.ZstdCompressor(level=3).compress(lines.getvalue()))


def decompress_pyarrow(path: Path) -> int:
    """Bytes of the text."""
    return len(pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd").read())


def decompress_zstandard(path: Path) -> int:
    """All frames of the file."""
    return len(zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read())


def read_lines(path: Path) -> int:
    """The same and each line as JSON, which is what `import` checks; their number."""
    text = pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd").read()
    return sum(1 for line in text.split(b"\n") if line and json.loads(line))


def cpu_seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The least of some runs."""
    spent = []
    for _ in range(times):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent)


def main() -> None:
    """Print one line per way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=400)
    chosen = parser.parse_args()
    table = make_table(chosen.rows, chosen.tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl.zst"
        for name, write in (("zstandard, json", write_zstandard), ("polars", write_polars),
                            ("DuckDB", write_duckdb)):
            seconds = cpu_seconds(functools.partial(write, table, path))
            print(f"write   {name:20} {seconds:6.2f} s  {path.stat().st_size / 1e6:6.1f} MB")
        for name, read in (("zstandard", decompress_zstandard), ("pyarrow", decompress_pyarrow),
                           ("pyarrow, json", read_lines)):
            print(f"read    {name:20} {cpu_seconds(functools.partial(read, path)):6.2f} s")


if __name__ == "__main__":
    main()
