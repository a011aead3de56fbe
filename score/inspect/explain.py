"""Single verdicts in full: of a stored completion, and of a program from a file, as it would be scored."""

import json
from pathlib import Path
from typing import Any

from score.inspect.units import unit_lines
from score.judging.completions import Item
from score.judging.judge import measure, registered_terms, run_programs
from score.judging.samples import verdict_row
from score.options import LaneOptions, TierOptions
from score.rewards.named import default_reward
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.limits import Limits
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import graders_of, load_task
from score.tasks.measures import Answer
from warehouse.inspect.show import completion_lines, completion_row, grid_pairs, pair_lines
from warehouse.sql.database import connect, rows_of
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, printable, shell_quote
from warehouse.store.run_folder import open_warehouse


def explain_completion(run: Path, completion: str, *, colors: bool) -> str:
    """What `warehouse show` says of a completion, and its verdict; StageError where there is none."""
    connection = connect(open_warehouse(run))
    row = completion_row(connection, run, completion)
    [task] = rows_of(connection, "SELECT kind, payload FROM tasks WHERE task_id = $1", [row["task_id"]])
    lines = completion_lines(connection, run, completion, color=colors, prompt=True)
    if row["scorer"] is not None:
        lines += ["", *verdict_lines(row, task["kind"], json.loads(task["payload"]))]
    return "\n".join(lines)


def verdict_lines(sample: dict[str, Any], kind: str, payload: dict[str, Any]) -> list[str]:
    """Which of its outputs are right, its error, and the terms of its reward."""
    outputs = json.loads(sample["outputs"] or "null")
    if kind == "grid":
        lines = [f"{title}: {'not known' if wanted is None else 'right' if output == wanted else 'wrong'}"
                 for title, _given, wanted, output in grid_pairs(payload, outputs)]
    else:
        lines = unit_lines(kind, payload, outputs["test"] if outputs else None)
    if sample["error_class"]:
        words = [sample["error_class"], sample["error_name"], sample["error_message"]]
        lines.append(printable(": ".join(filter(None, words))))
    terms = json.loads(sample["reward_parts"] or "{}")
    total = "none: it could not be measured" if sample["reward"] is None else f"{sample['reward']:.4g}"
    sum_of_terms = " + ".join(f"{name} {value:.4g}" for name, value in terms.items())
    return [*lines, f"reward {total}" + (f" = {sum_of_terms}" if sum_of_terms else "")]


def try_file(run: Path, file: Path, task_id: str, reward: str | None, limits: Limits, lanes: LaneOptions,
             isolation: TierOptions, *, colors: bool) -> str:
    """Run the file's program on the task and show outputs, verdict and reward."""
    warehouse = open_warehouse(run)
    rows = warehouse.read("tasks", columns=["task_id", "kind", "payload"], task_ids={task_id}).to_pylist()
    if not rows:
        raise StageError(f"{run} has no task {task_id}. List them with "
                         f"`warehouse sql {shell_quote(run)} \"select task_id from tasks\"`.")
    [row] = rows
    task = load_task(task_id, row["kind"], json.loads(row["payload"]))
    imports = tuple(sorted(lanes.allow_import))
    graders = graders_of([(row["kind"], task.payload)], lanes.import_path)
    scorer = Scorer(reward or default_reward([row["kind"]]), limits=limits, imports=imports,
                    graders=graders.versions)
    try:
        code = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise StageError(f"{file} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    items = [Item(task, Answer(code, code))]
    pool, best = open_lanes(isolation.tier, unsafe=isolation.unsafe_no_sandbox, limits=limits,
                            num_lanes=lanes.lanes or 1, imports=imports,
                            preload=(*lanes.preload, *graders.modules), import_paths=lanes.import_path)
    with pool:
        judgements = measure(items, run_programs(Executor(pool, isolated=best.isolated), items))
    [terms] = registered_terms(items, judgements, scorer)
    sample, outcome = verdict_row(items[0].answer, judgements[0], terms), judgements[0].outcome
    grids = grid_pairs(task.payload, json.loads(sample["outputs"] or "null")) if row["kind"] == "grid" else ()
    lines = [line for title, given, wanted, output in grids
             for line in (title, *pair_lines({"input": given, "output": wanted}, output, colors))]
    lines += verdict_lines(sample, row["kind"], task.payload)
    if outcome.cpu_seconds is not None:
        lines.append(f"{outcome.cpu_seconds * 1000:.1f} ms of CPU time, {outcome.max_rss_mib or 0:.0f} MiB, "
                     f"sandbox tier {best.name}")
    if {"reward-file", "reward_file"} & read_config(warehouse.root / "config.toml").get("score", {}).keys():
        lines.append(f"That is {scorer.name}: the reward file of config.toml is asked by `score RUN` alone.")
    return "\n".join(lines)
