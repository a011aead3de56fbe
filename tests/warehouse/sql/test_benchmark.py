"""The run that benchmarks of the warehouse ask is one that opens, and has the rows that it should."""

from pathlib import Path

from benchmarks import warehouse as benchmark
from benchmarks.warehouse_rows import ROWS
from warehouse.sql.database import connect, rows_of


def test_the_run_of_the_benchmark_is_made_once_and_answers(tmp_path: Path) -> None:
    for _ in range(2):
        run = benchmark.build(tmp_path / "run", 1, bodies=0)
    with connect(run) as connection:
        [row] = rows_of(connection, "SELECT num_completions, pass_at_1 FROM iteration_stats")
    assert row["num_completions"] == ROWS and 0 < row["pass_at_1"] < 1
