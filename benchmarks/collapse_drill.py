"""Simulated histories against the alarms: how often healthy runs fire, how soon broken runs do.

`python -m benchmarks.collapse_drill [HEALTHY [BROKEN]]` simulates HEALTHY healthy runs (200) and BROKEN (20)
of each kind of collapse, of 20 iterations each, looks at the alarms after every iteration as a loop does, and
prints the table of docs/studies.md. No model and no GPU: every completion is a draw of a random generator.
How many of a task's completions are right is binomial, tasks differ in difficulty, and an iteration trains on
32 of 96 tasks, or on 4 prompts of each of 8. What it measures is the alarms, not how often training
collapses.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from warehouse.sql.database import empty_connection, rows_of
from warehouse.store.schema import arrow_schema

if TYPE_CHECKING:
    import duckdb

ITERATIONS, TASKS, PER_ITERATION, GROUP, ONSET = 20, 96, 32, 16, 8
EVAL_TASKS, EVAL_EVERY, EVAL_GROUP = 50, 5, 8


class Weather(NamedTuple):
    """What an iteration looks like: chances of a completion, and what its training step reports."""

    gain: float = 0.0        # log odds added to every task
    truncated: float = 0.03
    looping: float = 0.01
    tokens: float = 200.0
    nll: float = 0.35
    ratio: float = 3.0       # median of the largest ratio of a step
    grad_norm: float = 0.3


Shape = Callable[[int], Weather]


def learning(rate: float, most: float) -> Shape:
    """A healthy run: gains that level off, entropy that falls, answers that grow shorter or longer."""
    return lambda i: Weather(gain=most * (1 - np.exp(-rate * i)), nll=0.35 - 0.012 * i, tokens=200 + 3 * i)


def broken(**since_onset: Callable[[int], float]) -> Shape:
    """A run that learns until ONSET and then takes the given values, by how many iterations it is ill."""
    well = learning(0.2, 1.5)
    return lambda i: well(i) if i < ONSET else well(i)._replace(
        **{name: value(i - ONSET + 1) for name, value in since_onset.items()})


BROKEN: dict[str, Shape] = {
    "sudden death": broken(gain=lambda n: -9.0, truncated=lambda n: 0.97, ratio=lambda n: 2500.0),
    "sudden silence": broken(gain=lambda n: -9.0, tokens=lambda n: 12.0, nll=lambda n: 0.004),
    "slow decline": broken(gain=lambda n: 1.2 - 0.15 * n),
    "growing length": broken(tokens=lambda n: 200 + 90 * n, truncated=lambda n: min(0.9, 0.03 + 0.07 * n),
                             gain=lambda n: 1.2 - 0.1 * n),
    "loops": broken(looping=lambda n: min(0.9, 0.12 * n), gain=lambda n: 1.2 - 0.2 * n),
    "bad first iterations": lambda i: Weather() if i == 0 else Weather(gain=-2.5, truncated=0.4, looping=0.2),
    "exploding ratio": broken(ratio=lambda n: 20 * 5.0**n, grad_norm=lambda n: 0.5 * 4.0**n,
                              gain=lambda n: 1.2 - 0.4 * max(0, n - 2)),
    "entropy comes apart": broken(nll=lambda n: 0.3 + 0.35 * n, gain=lambda n: 1.2 - 0.15 * n),
}


def simulate(shape: Shape, seed: int, prompts_per_task: int = 1) -> tuple[pa.Table, pa.Table]:
    """The samples and train_steps of a run; several prompts of a task are groups of fewer tasks."""
    random = np.random.default_rng(seed)
    difficulty = random.normal(-0.8, 2.0, TASKS + EVAL_TASKS)
    taste = random.normal(0, 0.5, TASKS + EVAL_TASKS)  # how much a task gains from the same training
    order: list[int] = []
    parts, steps, num_tasks = [], [], PER_ITERATION // prompts_per_task
    for iteration in range(ITERATIONS):
        if len(order) < num_tasks:
            order += random.permutation(TASKS).tolist()
        chosen, order = np.repeat(order[:num_tasks], prompts_per_task), order[num_tasks:]
        sky = shape(iteration)
        parts.append(_samples("train", iteration, chosen, GROUP, sky, difficulty, taste, random))
        if iteration % EVAL_EVERY == 0:
            held = np.arange(TASKS, TASKS + EVAL_TASKS)
            parts.append(_samples("eval", iteration, held, EVAL_GROUP, sky, difficulty, taste, random))
        for step in range(4):
            steps.append({"iteration": iteration, "optimizer_step": step, "policy_version": iteration,
                          "num_completions": PER_ITERATION * GROUP // 4,
                          "grad_norm": sky.grad_norm * random.lognormal(0, 0.4),
                          "ratio_max": sky.ratio * random.lognormal(0, 0.5), "clip_fraction": 0.01,
                          "policy_kl": 1e-3 * (sky.ratio / 3) * random.lognormal(0, 0.5)})
    return pa.concat_tables(parts), pa.Table.from_pylist(steps, schema=arrow_schema("train_steps"))


def _samples(purpose: str, iteration: int, tasks: np.ndarray, group: int, sky: Weather,
             difficulty: np.ndarray, taste: np.ndarray, random: np.random.Generator) -> pa.Table:
    rows = len(tasks) * group
    task = np.repeat(tasks, group)
    mood = np.repeat(random.normal(0, 0.5, len(tasks)), group)  # completions of a group resemble each other
    cut = random.random(rows) < _chance(np.log(sky.truncated / (1 - sky.truncated)) + mood)
    loop = random.random(rows) < sky.looping
    right = ~cut & ~loop & (random.random(rows) < _chance(difficulty[task] + sky.gain * (1 + taste[task])))
    length = sky.tokens * random.lognormal(0, 0.4, rows) * np.exp(0.3 * mood)
    tokens = np.where(cut, 2048, np.minimum(2000, length)).astype(int)
    nll = sky.nll * random.lognormal(0, 0.2, rows)
    names = [f"task-{number:03d}" for number in task]
    columns: dict[str, Any] = {
        "iteration": np.full(rows, iteration), "purpose": [purpose] * rows, "task_id": names,
        "sample_index": np.tile(np.arange(group), len(tasks)), "scorer": ["simulated"] * rows,
        "group_id": [f"{iteration}/{purpose}/{name}/{row // group}" for row, name in enumerate(names)],
        "split": ["train"] * rows,
        "policy_version": np.full(rows, iteration), "truncated": cut,
        "num_completion_tokens": tokens,
        "reward": right + 0.1 * random.random(rows) * (~right & ~cut), "correct": right,
        "valid_code": ~cut, "valid_outputs": ~cut, "first_output": random.random(rows) < 0.4,
        "nll_sampled": nll, "logprob_sum": -nll * tokens, "loop_tokens": np.where(loop, 100, 0),
        "unique_token_ratio": np.full(rows, 0.5), "ngram3_unique_ratio": np.where(loop, 0.1, 0.95),
        "ngram4_unique_ratio": np.where(loop, 0.1, 0.97)}
    schema = arrow_schema("samples")
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) if field.name in columns
                                 else pa.nulls(rows, field.type) for field in schema], schema=schema)


def _chance(log_odds: Any) -> Any:
    return 1 / (1 + np.exp(-log_odds))


class Outcome(NamedTuple):
    """What the alarms said of a run: when which fired first, and what of the best pass@1 was lost by then."""

    fired: int | None
    signals: list[str]
    lost: float


def judge(connection: duckdb.DuckDBPyConnection, shape: Shape, seed: int, first_look: int = 0,
          prompts_per_task: int = 1) -> Outcome:
    """Simulate a run and look at it after every iteration, as a loop does."""
    samples, steps = simulate(shape, seed, prompts_per_task)
    connection.register("simulated_samples", samples)
    connection.register("simulated_steps", steps)
    for table in ("samples", "fresh_samples"):
        connection.execute(f"CREATE OR REPLACE MACRO stored_{table}() AS TABLE FROM simulated_samples")
    connection.execute("CREATE OR REPLACE MACRO stored_train_steps() AS TABLE "
                       "FROM simulated_steps WHERE iteration <= getvariable('now')")
    connection.execute("SET VARIABLE now = 999; SET threads = 1")
    for view, macro in (("iteration_stats", "stats_of"), ("task_results", "task_results_of")):
        connection.execute(  # computed once; each look sees what there is by then
            f"CREATE OR REPLACE TABLE whole_{view} AS FROM {macro}('fresh_samples');"
            f"CREATE OR REPLACE VIEW {view} AS FROM whole_{view} WHERE iteration <= getvariable('now')")
    for now in range(first_look, ITERATIONS):
        connection.execute(f"SET VARIABLE now = {now}")
        rows = rows_of(connection, "SELECT signal FROM fired_signals WHERE iteration = $1", [now])
        if rows:
            solved = [_expected(shape(i)) for i in range(now + 1)]
            return Outcome(now, sorted({row["signal"] for row in rows}), 1 - solved[-1] / max(solved))
    return Outcome(None, [], 0.0)


def _expected(sky: Weather) -> float:
    """pass@1 that the weather means for tasks of every difficulty."""
    tasks = np.random.default_rng(0).normal(-0.8, 2.0, 4000)
    return float(_chance(tasks + sky.gain).mean() * (1 - sky.truncated) * (1 - sky.looping))


def main(healthy: int = 200, each: int = 20) -> None:
    """Print the table."""
    connection = empty_connection()
    for prompts in (1, 4):
        causes: Counter[str] = Counter()
        for seed in range(healthy):
            random = np.random.default_rng(seed + 10_000)
            shape = learning(random.uniform(0.0, 0.4), random.uniform(0.0, 2.0))
            outcome = judge(connection, shape, seed, prompts_per_task=prompts)
            causes.update(["runs"] * (outcome.fired is not None) + outcome.signals)
        print(f"{healthy} healthy simulated runs of {ITERATIONS} iterations, {PER_ITERATION // prompts} "
              f"tasks with {prompts} prompts: {causes.pop('runs', 0)} fired {dict(causes) or ''}", flush=True)
    print("| simulated collapse | fired | iterations after onset: median, most | best lost | by |")
    print("|---|---|---|---|---|")
    for name, shape in BROKEN.items():
        onset = 1 if name == "bad first iterations" else ONSET
        runs = [judge(connection, shape, seed) for seed in range(each)]
        outcomes = [outcome for outcome in runs if outcome.fired is not None]
        delays = sorted((outcome.fired or 0) - onset for outcome in outcomes) or [ITERATIONS]
        by = Counter(signal for outcome in outcomes for signal in outcome.signals).most_common(3)
        print(f"| {name} | {len(outcomes)} of {each} | {delays[len(delays) // 2]}, {delays[-1]} | "
              f"{max((outcome.lost for outcome in outcomes), default=0):.0%} | "
              f"{', '.join(signal for signal, _ in by)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
