"""What two scorers say about the same completions: rewards, correctness, and the direction of training."""

import difflib
from pathlib import Path
from typing import Any

import polars as pl

from warehouse.inspect.render import as_table
from warehouse.ledger.state import is_named
from warehouse.store.errors import StageError, counted, shell_quote, shorten
from warehouse.store.names import completion_name, is_of, is_training
from warehouse.store.run_folder import Stage, Warehouse, open_warehouse

KEYS = ["iteration", "purpose", "task_id", "sample_index"]
COLUMNS = [*KEYS, "group_id", "reward", "correct", "error_class"]
CHANGES = {"reward_changed": "another reward", "correct_changed": "another correctness",
           "sign_changed": "another sign (-, 0, +) of the advantage"}
NEGLIGIBLE = 1e-9


def diff_lines(run: Path, first: str, second: str, num_examples: int, purpose: str | None) -> list[str]:
    """A report on all rollouts that both scorers scored, in total, per task, and with examples."""
    warehouse = open_warehouse(run)
    (before, first, stage), (after, second, other) = (
        scored_by(warehouse, name, purpose) for name in (first, second))
    if first == second:
        raise StageError(f"Both are {first}. Name two scorers with their hashes: "
                         f"`warehouse sql {shell_quote(run)} \"FROM scorers\"` lists them.")
    joined = changes(before, after)
    if joined.is_empty():
        raise StageError(f"No completion was scored by both {first} and {second}. Run `score "
                         f"{shell_quote(run)}` with the options of the scorer that is missing.")
    lines = [f"{counted(joined.height, 'completion')} in {counted(joined['task_id'].n_unique(), 'task')}, "
             f"{first} against {second}", *what_differs(stage, other)]
    for column, words in CHANGES.items():
        changed = joined[column].drop_nulls()
        lines += [f"  {words}: {changed.sum()} ({changed.mean():.1%})"] if len(changed) else []
    both = joined.drop_nulls(["reward", "reward_right"])
    of = "" if both.height == joined.height else f", of the {both.height} that both gave one"
    means = [f"{rows.mean():.4f}" if len(rows) else "none" for rows in (both["reward"], both["reward_right"])]
    lines.append(f"  mean reward: {' -> '.join(means)}{of}")
    lines += per_task(joined)
    for column, words in CHANGES.items():
        lines += example_lines(joined.filter(pl.col(column)), words, num_examples)
    return lines


def scored_by(warehouse: Warehouse, name: str, wanted: str | None = None) -> tuple[pl.DataFrame, str, Stage]:
    """Rows of a scorer, all or of one purpose, with advantages; its identity; its last stage."""
    tables, scorers, named = [], set(), set()
    for iteration in warehouse.state.iterations("score"):
        for purpose in warehouse.state.purposes(iteration):
            if not is_of(purpose, wanted):
                continue
            complete = warehouse.state.scorers(iteration, purpose)
            scorers |= set(complete)
            if any(is_named(scorer, name) for scorer in complete):
                scorer, _ = warehouse.choose_scorer(iteration, purpose, name)
                named.add(scorer)
                keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose, "scorer": scorer}
                tables.append(warehouse.read("samples", columns=COLUMNS, **keys))
                stage = warehouse.stage("score", **keys)
    if not tables:
        of = f" of '{wanted}'" if wanted else ""
        raise StageError(f"No scorer called '{name}' has scored anything{of} in {warehouse.root}. There are: "
                         f"{', '.join(sorted(scorers)) or 'none'}; `score {shell_quote(warehouse.root)}` "
                         "with --reward or --reward-file adds one.")
    rows = pl.concat([pl.DataFrame(pl.from_arrow(table)) for table in tables])
    advantage = pl.col("reward") - pl.col("reward").mean().over("iteration", "purpose", "group_id")
    return rows.with_columns(advantage=advantage), ", ".join(sorted(named)), stage


def what_differs(before: Stage, after: Stage) -> list[str]:
    """Settings in which two scorers differ, and the lines in which the user's rewards do."""
    old, new = before.settings() or {}, after.settings() or {}
    old_text, text = (str((stage.facts() or {}).get("reward_source", "")) for stage in (before, after))
    told = difflib.unified_diff(old_text.splitlines(), text.splitlines(), n=0, lineterm="")
    lines = [f"    {line}" for line in told if old_text and text][2:]
    tasks, others = (settings.pop("replaced", None) or {} for settings in (old, new))    # hashes by task
    replaced = ", ".join(sorted(name for name in tasks.keys() | others.keys()
                                if tasks.get(name) != others.get(name)))
    return [f"  {name}: {shorten(old.get(name), 90)} -> {shorten(new.get(name), 90)}"
            for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)] + (
                [f"  replaced: {replaced}"] if replaced else []) + lines


def changes(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Completions of both, with what changed as flags; a reward that is missing on one side has changed.

    Signs are null for rows that are not trained on.
    """
    joined = first.join(second, on=KEYS, how="inner", validate="1:1")
    reward = (pl.col("reward") - pl.col("reward_right")).abs() > NEGLIGIBLE
    missing = pl.col("reward").is_null() != pl.col("reward_right").is_null()
    trained_on = [purpose for purpose in joined["purpose"].unique() if is_training(purpose)]
    return joined.with_columns(
        reward_changed=reward.fill_null(False) | missing,
        correct_changed=pl.col("correct").ne_missing(pl.col("correct_right")),
        sign_changed=pl.when(pl.col("purpose").is_in(trained_on)).then(
            sign_of("advantage").ne_missing(sign_of("advantage_right"))))


def sign_of(name: str) -> pl.Expr:
    """-1, 0 or 1; what is negligible counts as 0."""
    return pl.when(pl.col(name).abs() > NEGLIGIBLE).then(pl.col(name).sign()).otherwise(0.0)


def per_task(joined: pl.DataFrame, most: int = 10) -> list[str]:
    """The tasks that changed most."""
    tasks = joined.group_by("task_id").agg(
        completions=pl.len(), rewards=pl.col("reward_changed").sum(),
        correct=pl.col("correct_changed").sum(), signs=pl.col("sign_changed").sum())
    tasks = tasks.filter(pl.col("rewards") + pl.col("correct") + pl.col("signs") > 0)
    tasks = tasks.sort(["signs", "correct", "rewards", "task_id"], descending=[True, True, True, False])
    if tasks.is_empty():
        return ["  no verdict of a task changed"]
    rest = [f"  and {counted(tasks.height - most, 'more task')}"] if tasks.height > most else []
    return [as_table(["task", *tasks.columns[1:]], tasks.head(most).rows()), *rest]


def example_lines(rows: pl.DataFrame, words: str, num_examples: int) -> list[str]:
    """A few completions of one kind of change, as `score explain` takes them."""
    shown = rows.sort(KEYS).head(num_examples)
    lines = [f"{words}, for example:"] if shown.height else []
    for row in shown.iter_rows(named=True):
        name = completion_name(*(row[key] for key in KEYS))
        lines.append(f"  {name}: reward {number(row['reward'])} -> {number(row['reward_right'])}, "
                     f"advantage before scaling {number(row['advantage'])} -> "
                     f"{number(row['advantage_right'])}")
    return lines


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
