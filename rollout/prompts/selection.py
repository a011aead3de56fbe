"""Which tasks a rollout samples, and which completions a later turn answers."""

from collections import Counter
from itertools import cycle, islice
from typing import Any

from rollout.options import RolloutOptions
from warehouse.store.commit import ensure_local
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import base_purpose, is_training, turn_of, turn_purpose
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse

KEYS = ("iteration", "purpose", "task_id", "sample_index")
ROWS = """
SELECT samples.* EXCLUDE (iteration, purpose, task_id, sample_index, group_id, split), chosen.*,
       completions.group_id, completion, completion_ids, prompt, prompt_ids, prompts.split, prompt_format,
       format_options, prefill, flip, rotations, color_map, pair_order, shown_test, segments, kind, payload,
       heldout
FROM (SELECT unnest($1) AS place, unnest($2) AS iteration, unnest($3) AS purpose, unnest($4) AS task_id,
             unnest($5) AS sample_index) AS chosen
LEFT JOIN completions USING (iteration, purpose, task_id, sample_index)
LEFT JOIN samples USING (iteration, purpose, task_id, sample_index)
LEFT JOIN prompts ON prompts.iteration = chosen.iteration AND prompts.purpose = chosen.purpose
    AND prompts.group_id = completions.group_id
LEFT JOIN tasks ON tasks.task_id = chosen.task_id
ORDER BY place"""


def choose_tasks(warehouse: Warehouse, options: RolloutOptions) -> list[dict[str, Any]]:
    """Tasks of the requested splits in order of import, or those of them that a query returns.

    The default is all held-out splits for evaluation and all others for training; for a begun evaluation
    `eval` it is that evaluation's split. StageError when none is left.
    """
    tasks = warehouse.read("tasks").sort_by("position").to_pylist()
    known = list(dict.fromkeys(task["split"] for task in tasks))
    usual = options.evaluate and not options.label and warehouse.state.split_of_eval(tasks)
    splits = options.splits or ((usual,) if usual else tuple(dict.fromkeys(
        task["split"] for task in tasks if task["heldout"] == options.evaluate)))
    for split in splits:
        if split not in known:
            raise StageError(f"This run has no split '{split}'. It has {', '.join(known)}.")
    if not splits:
        kind, held = ("held-out", "--heldout") if options.evaluate else ("training", "--tasks")
        raise StageError(f"This run has no {kind} split. Name one of {', '.join(known)} with --split, or add "
                         f"tasks: warehouse tasks add {shell_quote(warehouse.root)} {held} SOURCE")
    tasks = [task for task in tasks if task["split"] in splits]
    if options.tasks_sql is not None and not (tasks := named_by_query(warehouse, options.tasks_sql, tasks)):
        raise StageError("--tasks-sql names no task, or none of them in the splits to sample. Try the "
                         "query with `warehouse sql`, or name the split with --split.")
    return tasks


def named_by_query(warehouse: Warehouse, query: str, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks that the query returns as task_id; StageError if it has no such column."""
    from warehouse.sql.database import connect, keys_of
    rows = keys_of(connect(warehouse, strict=True), "--tasks-sql", query, ["task_id"])
    wanted = {row["task_id"] for row in rows}
    return [task for task in tasks if task["task_id"] in wanted]


def training_visits(warehouse: Warehouse, before: int) -> Counter[str]:
    """In how many training iterations before this one each task was begun.

    Reads and verifies only two columns of each plan; hashing whole plans would read everything again.
    """
    warehouse.stages()                  # downloads their manifests, many at once
    plans = {iteration: warehouse.parts("prompts", iteration=iteration, purpose="train")
             for iteration in warehouse.state.iterations("rollout") if iteration < before}
    ensure_local(part for parts in plans.values() for part in parts)
    visits, carried = Counter[str](), set[str]()
    for iteration, parts in plans.items():
        plan = read_parts(parts, "prompts", ["task_id", "group_id"]).to_pylist()
        visits.update({row["task_id"] for row in plan if row["group_id"] not in carried})
        carried |= set(warehouse.state.carried_groups(iteration))
    return visits


def choose_parents(warehouse: Warehouse, options: RolloutOptions, iteration: int,
                   purpose: str) -> list[dict[str, Any]]:
    """Rows of the parents of the wave `purpose`: columns of samples, completions, prompts and tasks.

    A task has `parents_per_task` of them, repeated if it has fewer wrong ones; rows of a query are taken
    as they are. StageError if there is none, or one that cannot be answered.
    """
    from warehouse.sql.database import connect, keys_of, rows_of
    if is_training(purpose) and warehouse.state.is_trained(iteration):
        raise StageError(f"Iteration {iteration} is trained already: rows added now would never be trained "
                         "on. Sample its turns before `train`, or give --eval.")
    before = turn_purpose(base_purpose(purpose), turn_of(purpose) - 1)
    connection = connect(warehouse, strict=True)
    usual = {"iteration": iteration, "purpose": before}
    query = options.parents_sql
    if query is None:
        query = f"FROM wrong_completions({iteration}, of_purpose := '{before}')"
    rows = keys_of(connection, "--from", query, ["task_id", "purpose"], ["sample_index", "iteration"],
                   may_lack=list(usual), hint="Select task_id and sample_index, and iteration and purpose "
                   f"where they are others than {iteration} and '{before}'.")
    given = [usual | row for row in rows]
    if not given:
        raise StageError("--from gives no row. Try the query with `warehouse sql`." if options.parents_sql
                         else _why_none(warehouse, iteration, before))
    of_task: dict[str, list[tuple[Any, ...]]] = {}
    for row in given:
        of_task.setdefault(str(row["task_id"]), []).append(tuple(row[name] for name in KEYS))
    if options.splits or options.tasks_sql is not None:
        chosen = [task["task_id"] for task in choose_tasks(warehouse, options)]
        of_task = {task: keys for task, keys in of_task.items() if task in chosen}
        if not of_task:
            raise StageError("No completion to answer is of these splits and tasks. Name splits that have "
                             "some with --split, or other tasks.")
    count = options.parents_per_task or (1 if options.parents_sql is None else None)
    keys = [key for several in list(of_task.values())[:options.num_tasks]
            for key in (islice(cycle(several), count) if count else several)]
    parents = rows_of(connection, ROWS, [list(range(len(keys))), *map(list, zip(*keys, strict=True))])
    for parent in parents:
        _check(warehouse, parent, purpose)
    return parents


def _why_none(warehouse: Warehouse, iteration: int, before: str) -> str:
    if not warehouse.state.scorers(iteration, before):
        return (f"Iteration {iteration} has no scored rollout of purpose {before} to answer. Run `rollout` "
                "and `score` for it first, or name other rows with --from.")
    others = ", or other splits with --split" if before.startswith("eval-") else ""
    return (f"Iteration {iteration} ({before}) has no wrong completion to answer. Name rows with --from if "
            f"right ones are to be answered, too{others}.")


def _check(warehouse: Warehouse, parent: dict[str, Any], purpose: str) -> None:
    name = "/".join(str(parent[key]) for key in KEYS)
    if parent["group_id"] is None:
        raise StageError(f"There is no completion {name} in the complete rollouts: it was never sampled, or "
                         "its iteration was discarded. Correct --from.")
    if parent["scorer"] is None:
        raise StageError(f"Completion {name} is not scored, so there is no feedback for it. Run `score "
                         f"{shell_quote(warehouse.root)} --iteration {parent['iteration']}` first.")
    if parent["prompt_ids"] is None or parent["completion_ids"] is None:
        raise StageError(f"The tokens of completion {name} were pruned, so they cannot be continued. Name "
                         "rows of an iteration that was not pruned.")
    if turn_of(parent["purpose"]) != turn_of(purpose) - 1:
        raise StageError(f"Completion {name} is of turn {turn_of(parent['purpose'])}: turn "
                         f"{turn_of(purpose)} follows turn {turn_of(purpose) - 1} alone. Correct --from.")
    if is_training(purpose) and not is_training(parent["purpose"]):
        raise StageError(f"Completion {name} is an evaluation, not to be trained on. Name training rows, "
                         "or give --eval.")
