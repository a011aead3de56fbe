"""Numbers of an iteration's rollout, score and evaluations, for a tracker."""

from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import Warehouse

# Columns of `iteration_stats` about sampling; the others are about rewards.
OF_ROLLOUT = ("tokens_", "truncated_", "unique_", "ngram", "loop_", "nll_", "empty_")
STATS = "SELECT * EXCLUDE (iteration, policy_version, max_k) FROM iteration_stats WHERE iteration = $1"
PARTS = "SELECT purpose, part, mean FROM part_means WHERE iteration = $1"
COSTS = """SELECT stage, purpose, seconds, tokens_per_second, completions_per_second FROM costs
           WHERE iteration = $1 AND stage IN ('rollout', 'score')"""


def stage_numbers(warehouse: Warehouse, iteration: int) -> dict[str, float]:
    """Numbers by name: `rollout/..` and `score/..` of the training's rows, `eval/..` of each evaluation."""
    connection, numbers = connect(warehouse, iteration=iteration), {}
    for row in rows_of(connection, STATS, [iteration]):
        for column, value in row.items():
            group = "rollout" if column.startswith(OF_ROLLOUT) else "score"
            numbers[f"{group if row['purpose'] == 'train' else row['purpose']}/{column}"] = value
    for row in rows_of(connection, PARTS, [iteration]):
        group = "score" if row["purpose"] == "train" else row["purpose"]
        numbers[f"{group}/reward_parts/{row['part']}"] = row["mean"]
    for row in rows_of(connection, COSTS, [iteration]):
        if row["purpose"] == "train":
            numbers |= {f"{row['stage']}/{column}": row[column]
                        for column in ("seconds", "tokens_per_second", "completions_per_second")}
    return {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
