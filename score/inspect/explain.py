"""Single verdicts in full: of a stored completion, and of a program from a file, as it would be scored."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from score.checks import scorer_of
from score.inspect.units import unit_lines
from score.judging.completions import Item, program_in
from score.judging.judge import STORED, measure, reward_terms, run_programs
from score.judging.samples import verdict_row
from score.options import LaneOptions, LimitOptions, RewardOptions, TierOptions
from score.sandbox.executor import Executor
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from warehouse.inspect.show import judged_task, no_completion, pair_lines, parse_name
from warehouse.store.errors import StageError, printable, shell_quote
from warehouse.store.run_folder import Warehouse, open_warehouse


def explain_completion(run: Path, completion: str, scorer: str | None, *, colors: bool) -> str:
    """The verdict on `ITERATION/[PURPOSE/]TASK/INDEX`; StageError where there is none, or several."""
    warehouse = open_warehouse(run)
    for iteration, purpose, task_id, sample_index in parse_name(completion):
        keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
        if answer := row_of(warehouse, "completions", task_id, sample_index, **keys):
            break
    else:
        raise no_completion(warehouse, completion)
    identity, _ = warehouse.choose_scorer(iteration, purpose, scorer)
    sample = row_of(warehouse, "samples", task_id, sample_index, scorer=identity, **keys)
    if sample is None:
        raise no_completion(warehouse, completion)
    prompts = warehouse.read("prompts", columns=["task_id", "group_id", "prompt"], task_ids={task_id},
                             **keys).to_pylist()
    prompt = next((row["prompt"] for row in prompts if row["group_id"] == sample["group_id"]), None)
    [now] = warehouse.read("tasks", columns=["task_id", "kind", "payload"], task_ids={task_id}).to_pylist()
    task, corrected = judged_task(warehouse, now, iteration, purpose, identity)
    return "\n".join([
        f"completion {sample_index} of task {task_id}, iteration {iteration} {purpose}, policy "
        f"{sample['policy_version']}, {identity}", *([corrected] if corrected else []), "",
        "--- prompt", printable(prompt or "(not stored)"),
        "--- completion", printable(answer["completion"] or ""),
        *verdict_lines(sample, task["kind"], json.loads(task["payload"]), colors=colors)])


def verdict_lines(sample: dict[str, Any], kind: str, payload: dict[str, Any], *, colors: bool) -> list[str]:
    """Outputs and expected outputs, errors, and the terms of the reward."""
    lines = ["--- outputs"]
    outputs = json.loads(sample["outputs"]) if sample["outputs"] else None
    if kind == "grid":
        for split in ("train", "test"):
            for index, pair in enumerate(payload[split]):
                output = outputs[split][index] if outputs else None
                wanted = pair.get("output")
                mark = "not known" if wanted is None else "right" if output == wanted else "wrong"
                lines += [f"{split} {index + 1}: {mark}", *pair_lines(pair, output, colors)]
    else:
        lines += unit_lines(kind, payload, outputs["test"] if outputs else None)
    lines.append("--- verdict")
    if sample["error_class"]:
        words = [sample["error_class"], sample["error_name"], sample["error_message"]]
        lines.append(printable(": ".join(word for word in words if word)))
    cpu, rss = sample["cpu_seconds"], sample["max_rss_mib"]
    if cpu is not None:
        lines.append(f"{cpu * 1000:.1f} ms of CPU time, {rss or 0:.0f} MiB, sandbox tier "
                     f"{sample['sandbox_tier']}")
    lines.append({True: "correct", False: "not correct", None: "not judged"}[sample["correct"]])
    terms = json.loads(sample["reward_parts"]) if sample["reward_parts"] else {}
    total = "none: it could not be measured" if sample["reward"] is None else f"{sample['reward'] + 0.0:.4g}"
    sum_of_terms = " + ".join(f"{name} {value + 0.0:.4g}" for name, value in terms.items())
    lines.append(f"reward {total}" + (f" = {sum_of_terms}" if sum_of_terms else ""))
    return lines


def row_of(warehouse: Warehouse, table: str, task_id: str, sample_index: int,
           **keys: Any) -> dict[str, Any] | None:
    rows = warehouse.read(table, task_ids={task_id}, **keys).to_pylist()
    return next((row for row in rows if row["sample_index"] == sample_index), None)


def try_file(run: Path, file: Path, task_id: str, reward: RewardOptions, limits: LimitOptions,
             lanes: LaneOptions, isolation: TierOptions, *, colors: bool) -> str:
    """Run the file's program on the task and show outputs, verdict and reward.

    A reward file sees the file's text as the completion, without tokens.
    """
    warehouse = open_warehouse(run)
    rows = warehouse.read("tasks", columns=["task_id", "kind", "payload", "messages"],
                          task_ids={task_id}).to_pylist()
    if not rows:
        raise StageError(f"{run} has no task {task_id}. List them with "
                         f"`warehouse sql {shell_quote(run)} \"select task_id from tasks\"`.")
    [row] = rows
    scorer, modules = scorer_of(reward, limits, lanes, [(row["kind"], row["payload"])], {})
    try:
        code = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise StageError(f"{file} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    task = load_task(task_id, row["kind"], json.loads(row["payload"]))
    said = "\n\n".join(message["content"] for message in json.loads(row["messages"] or "[]"))
    items = [Item(task, Answer(code, program_in(code)), prompt=said)]
    pool, best = open_lanes(isolation.tier, unsafe=isolation.unsafe_no_sandbox, limits=scorer.limits,
                            num_lanes=lanes.lanes or 1, imports=scorer.imports,
                            preload=(*lanes.preload, *modules), import_paths=lanes.import_path)
    with pool:
        judgements = measure(items, run_programs(Executor(pool, isolated=best.isolated), items))
    completion = dict.fromkeys((*STORED, "completion_ids")) | {"finish_reason": "stop", "sample_index": 0,
                                                               "group_id": task_id, "completion_ids": []}
    [terms] = reward_terms(items, judgements, scorer, pa.Table.from_pylist([completion]))
    sample = verdict_row(items[0].answer, judgements[0], terms) | {"sandbox_tier": best.name}
    lines = verdict_lines(sample, row["kind"], task.payload, colors=colors)
    return "\n".join([*lines, *(["The reward file got no tokens: parts that read completion_ids are wrong."]
                                if reward.reward_file else [])])
