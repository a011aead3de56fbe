"""Votes, intervals, comparisons, corrections and token gaps against numbers worked out in Python."""

from collections import Counter
from math import exp
from typing import Any

import duckdb
import numpy as np
import pytest

from reports.viewer.session import Asking
from reports.viewer.tokens import worst_gaps
from tests.building.weather import SCORER, build_run
from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import Warehouse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(tmp_path_factory.mktemp("runs") / "run", shape="mismatch", iterations=8, evals=(7,))


@pytest.fixture(scope="module")
def connection(run: Warehouse) -> duckdb.DuckDBPyConnection:
    return connect(run)


def samples(run: Warehouse, iteration: int) -> list[dict[str, Any]]:
    return run.read("samples", iteration=iteration, purpose="train", scorer=SCORER).to_pylist()


def test_majority_votes_match_a_count_by_hand(run: Warehouse, connection: duckdb.DuckDBPyConnection) -> None:
    k, right = 4, {}
    for task in {row["task_id"] for row in samples(run, 1)}:
        rows = sorted((row for row in samples(run, 1) if row["task_id"] == task),
                      key=lambda row: row["sample_index"])
        wins = []
        for first in range(0, 16, k):
            votes = [row for row in rows[first:first + k] if row["fingerprint"]]
            counts = Counter(row["fingerprint"] for row in votes)
            best = max(
                counts,
                key=lambda name: (counts[name], -[row["fingerprint"] for row in votes].index(name)),
                default=None,
            )
            wins.append(any(row["correct"] for row in votes if row["fingerprint"] == best))
        right[task] = np.mean(wins)
    found = rows_of(connection, "FROM maj_at_k(1, 4)")[0]
    assert found == {
        "maj_at_k": pytest.approx(np.mean(list(right.values()))),
        "num_tasks": 8,
        "num_blocks": 4,
    }


def test_the_bootstrap_interval_has_the_width_of_resampling(run: Warehouse,
                                                            connection: duckdb.DuckDBPyConnection) -> None:
    rates = [np.mean([row["correct"] for row in samples(run, 2) if row["task_id"] == task])
             for task in sorted({row["task_id"] for row in samples(run, 2)})]
    random = np.random.default_rng(0)
    means = random.choice(rates, size=(20_000, len(rates))).mean(axis=1)
    found = rows_of(connection, "FROM pass_bands(resamples := 4000) "
                                "WHERE iteration = 2 AND purpose = 'train' ORDER BY k")[0]
    assert found["pass_at_k"] == pytest.approx(np.mean(rates))
    assert found["low"] == pytest.approx(np.quantile(means, 0.025), abs=0.02)
    assert found["high"] == pytest.approx(np.quantile(means, 0.975), abs=0.02)
    bands = rows_of(connection, "FROM pass_bands()")
    assert bands == rows_of(connection, "FROM pass_bands() ORDER BY iteration, purpose, k")
    assert all(row["policy_version"] == row["iteration"] for row in bands if row["purpose"] == "train")


def test_policies_are_compared_task_by_task(run: Warehouse, connection: duckdb.DuckDBPyConnection) -> None:
    rows = rows_of(connection, "FROM compare(0, 3, purposes := 'train')")
    assert len(rows) == 8
    for row in rows:
        c_a = sum(one["correct"] for one in samples(run, 0) if one["task_id"] == row["task_id"])
        c_b = sum(one["correct"] for one in samples(run, 3) if one["task_id"] == row["task_id"])
        assert (row["c_a"], row["c_b"], row["gain"]) == (c_a, c_b, pytest.approx((c_b - c_a) / 16))


def test_the_worst_tokens_come_first_in_their_text(run: Warehouse) -> None:
    trained = {(row["task_id"], row["sample_index"]): row["old_logprobs"]
               for row in run.read("train_samples", iteration=7).to_pylist()}
    worst = max(abs(old - mu) for row in run.read("completions", iteration=7, purpose="train").to_pylist()
                for old, mu in zip(trained[row["task_id"], row["sample_index"]], row["behaviour_logprobs"],
                                   strict=True))
    first, second = worst_gaps(Asking(connect(run)), 7, 2)
    assert abs(first["gap"]) == pytest.approx(worst, abs=1e-4) and abs(second["gap"]) <= abs(first["gap"])
    [row] = rows_of(connect(run), "FROM token_gaps(7) ORDER BY abs(gap) DESC LIMIT 1")
    assert row["gap"] == first["gap"] and first["token"]
    assert first["before"] or first["after"]


def test_gaps_have_the_k3_of_the_mismatch_however_far_a_token_is_off(run: Warehouse) -> None:
    connection = connect(run)
    connection.execute("CREATE TABLE far AS SELECT * REPLACE (-30.0::DOUBLE AS gap) FROM token_gaps(7)")
    connection.execute("CREATE OR REPLACE MACRO token_gaps(at_iteration) AS TABLE FROM far")
    for row in rows_of(connection, "FROM gaps_by_origin(7)"):
        assert row["mismatch_kl"] == pytest.approx(exp(-30) + 30 - 1)
