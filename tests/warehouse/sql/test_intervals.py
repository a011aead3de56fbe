"""How often the 95% intervals of pass_bands hold the truth: less often than they say where tasks are few."""

import numpy as np
import pyarrow as pa
import pytest

from warehouse.sql.database import empty_connection

RUNS = 2000


@pytest.mark.parametrize(("num_tasks", "held"), [(8, 0.88), (16, 0.92), (32, 0.94), (100, 0.945)])
def test_intervals_of_simulated_runs_hold_pass_at_1_as_often_as_the_page_says(num_tasks: int,
                                                                              held: float) -> None:
    """Each iteration is a run of its own, its tasks drawn anew; on average 3 completions of 10 are right."""
    random = np.random.default_rng(num_tasks)
    right = random.binomial(8, random.beta(0.6, 1.4, (RUNS, num_tasks))).astype(np.int32)
    connection = empty_connection()
    connection.register("drawn", pa.table({
        "iteration": np.repeat(np.arange(RUNS, dtype=np.int32), num_tasks),
        "task_id": np.tile([f"t{task:03}" for task in range(num_tasks)], RUNS), "c": right.reshape(-1)}))
    connection.execute("CREATE OR REPLACE VIEW task_results AS "
                       "SELECT *, 'train' AS purpose, 0 AS policy_version, 8 AS n FROM drawn")
    bounds = connection.execute("SELECT low, high FROM pass_bands() WHERE k = 1").fetchnumpy()
    inside = np.mean((bounds["low"] <= 0.3) & (bounds["high"] >= 0.3))
    assert inside == pytest.approx(held, abs=0.015)
