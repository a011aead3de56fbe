"""The curve with the tasks' difficulty taken out: against known truth, and against nothing to go by."""

import numpy as np
import pyarrow as pa
import pytest

from warehouse.sql.database import empty_connection, rows_of

Visit = tuple[int, str, str, int, int]


def adjusted(visits: list[Visit], reward: str = "c / n", scorer: str = "NULL") -> list[dict[str, float]]:
    """The rows of the view for (iteration, purpose, task, n, c), with rewards and scorers as SQL says."""
    connection = empty_connection()
    names = ("iteration", "purpose", "task_id", "n", "c")
    columns = dict(zip(names, zip(*visits, strict=True), strict=True))
    connection.register("visits", pa.table({name: list(column) for name, column in columns.items()}))
    connection.execute("CREATE OR REPLACE VIEW task_results AS SELECT *, "
                       f"{scorer} AS scorer, {reward} AS reward_mean FROM visits")
    return rows_of(connection, "FROM adjusted ORDER BY purpose <> 'train', iteration")


def simulated_visits(levels: list[float], per_iteration: int, num_tasks: int, seed: int) -> list[Visit]:
    """Visits of an ability per iteration whose tasks are harder at some iterations than at others."""
    random = np.random.default_rng(seed)
    ease = random.normal(0, 0.25, num_tasks)
    rows = []
    for iteration, level in enumerate(levels):
        # Hard tasks first, then easy ones: what the plain mean takes for learning.
        near = random.normal(np.argsort(np.argsort(ease)) - num_tasks * (iteration % 3) / 2, num_tasks / 3)
        for task in np.argsort(np.abs(near))[:per_iteration]:
            right = random.binomial(16, float(np.clip(level + ease[task], 0.02, 0.98)))
            rows.append((iteration, "train", f"t{task}", 16, int(right)))
    return rows


def test_difficulty_is_taken_out_and_the_interval_holds_the_truth() -> None:
    levels = [0.40, 0.40, 0.40, 0.45, 0.45, 0.45, 0.50, 0.50, 0.50]
    inside, plain_errors, errors = [], [], []
    for seed in range(8):
        rows = adjusted(simulated_visits(levels, 24, 48, seed))
        offset, plain_offset = (np.mean([row[name] for row in rows]) - np.mean(levels)
                                for name in ("solving", "solving_plain"))
        for row, level in zip(rows, levels, strict=True):
            errors.append(row["solving"] - offset - level)
            plain_errors.append(row["solving_plain"] - plain_offset - level)
            inside.append(abs(errors[-1]) < 1.96 * row["solving_error"])
    assert np.std(errors) < 0.5 * np.std(plain_errors)
    assert 0.88 <= np.mean(inside) <= 1.0


def test_tasks_seen_once_leave_the_plain_mean_and_its_error() -> None:
    random = np.random.default_rng(5)
    visits = [(iteration, "train", f"t{iteration}-{task}", 16, int(random.binomial(16, random.beta(1, 1))))
              for iteration in range(3) for task in range(40)]
    rows = adjusted(visits)
    shares = np.array([visit[4] / 16 for visit in visits]).reshape(3, 40)
    for row, iteration in zip(rows, shares, strict=True):
        assert row["solving"] == pytest.approx(row["solving_plain"]) == pytest.approx(iteration.mean())
        assert row["solving_error"] == pytest.approx(shares.std() / np.sqrt(40), rel=0.15)


def test_the_base_rates_of_an_evaluation_on_the_same_tasks_count() -> None:
    hard = [(1, "train", f"t{task}", 16, 4) for task in range(8)]
    easy = [(0, "train", f"t{task}", 16, 12) for task in range(8, 16)]
    base = [(0, "eval", f"t{task}", 16, 2 if task < 8 else 12) for task in range(16)]
    before, after, _ = adjusted(easy + hard + base)
    assert after["solving_plain"] < before["solving_plain"] and after["solving"] > before["solving"]


def test_another_benchmark_changes_no_number_of_one() -> None:
    """Tasks of the one are all as easy, those of the other are right or wrong."""
    random = np.random.default_rng(2)
    alike, apart = ([(iteration, purpose, f"{purpose}{task}", 8, right())
                     for iteration in range(3) for task in range(20)]
                    for purpose, right in (("eval-alike", lambda: int(random.binomial(8, 0.5))),
                                           ("eval-apart", lambda: int(random.choice([0, 8])))))
    together = adjusted([*alike, *apart])
    for alone, purpose in ((adjusted(alike), "eval-alike"), (adjusted(apart), "eval-apart")):
        for row, other in zip(alone, (row for row in together if row["purpose"] == purpose), strict=True):
            assert other == {name: pytest.approx(value) if isinstance(value, float) else value
                             for name, value in row.items()}


def test_rewards_of_another_scorer_change_neither_rewards_nor_their_errors() -> None:
    """From iteration 6 on, one that pays a tenth, and most for what is wrong."""
    visits = simulated_visits([0.5] * 12, 24, 48, 3)
    first, then = [visit for visit in visits if visit[0] < 6], [visit for visit in visits if visit[0] >= 6]
    other = "0.1 - c / n / 10"
    both = adjusted(visits, f"CASE WHEN iteration < 6 THEN c / n ELSE {other} END", "iteration < 6")
    for row, alone in zip(both, [*adjusted(first), *adjusted(then, other)], strict=True):
        assert (row["reward"], row["reward_error"]) == pytest.approx((alone["reward"], alone["reward_error"]))


def test_no_results_have_no_curve() -> None:
    connection = empty_connection()
    assert rows_of(connection, "FROM adjusted") == []


def visits_of(sizes: list[int], num_tasks: int = 12) -> list[Visit]:
    """Visits of the same tasks at every iteration with groups of a size each."""
    random = np.random.default_rng(3)
    return [(iteration, "train", f"t{task}", size, int(random.binomial(size, 0.1 + 0.05 * task)))
            for iteration, size in enumerate(sizes) for task in range(num_tasks)]


def test_an_iteration_that_could_hardly_be_measured_takes_no_pass_at_k_from_the_others() -> None:
    *others, odd = adjusted(visits_of([16] * 12 + [1]))
    for row, alone in zip(others, adjusted(visits_of([16] * 12)), strict=True):
        assert row["k"] == alone["k"] == 16
        for name in ("reach", "reach_error", "reach_plain"):
            assert row[name] == pytest.approx(alone[name])
    assert (odd["reach"], odd["reach_error"], odd["reach_plain"]) == (None, None, None)
    assert odd["solving"] is not None


def test_what_has_no_more_than_pass_at_1_has_no_reach() -> None:
    assert {row["reach"] for row in adjusted(visits_of([16, 1, 1]))} == {None}
