"""Canonical solutions: each must be judged right, or its task and this machine do not fit each other."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from score.display import Progress
from score.inspect.units import unit_lines
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.limits import Limits
from score.sandbox.outcomes import Outcome
from score.sandbox.pool import usable_cores
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import graders_of, load_task
from score.tasks.measures import Answer
from score.tasks.together import mode_of
from warehouse.store.errors import StageError, counted
from warehouse.store.run_folder import open_warehouse
from warehouse.tasks.answers import first_code_block
from warehouse.tasks.task_files import json_lines, read_jsonl

SHOWN = 10          # solutions that are not judged right
STEPS = (1, 4, 16, 64)      # times the limits, for solutions that ran into them
MOST_MEMORY = 8             # times the limit on memory
LIMITED = ("timeout", "memory", "MemoryError")      # what is said of a solution that ran into a limit


@dataclass(frozen=True)
class GoldTask:
    """A task as it is stored, with its payload read."""

    task_id: str
    kind: str
    payload: dict[str, Any]

    @property
    def may_be_together(self) -> bool:
        """True of tests for which nobody has chosen where they run."""
        return (self.kind == "function" and "tests" in self.payload and "mode" not in self.payload
                and mode_of(self.payload) == "apart")


@dataclass(frozen=True)
class GoldVerdict:
    """What became of a canonical solution: right, or why not; `together` where it is right so alone.

    `limited` is true where it ran into a limit; `needs` are the options of `score` without which it does.
    """

    task_id: str
    right: bool
    together: bool
    reason: str
    limited: bool
    needs: str = ""


def score_gold(where: Path, gold: Path, output: Path | None, limits: Limits, *, allow_import: tuple[str, ...],
               import_path: tuple[str, ...], preload: tuple[str, ...], lanes: int | None, tier: str | None,
               unsafe_no_sandbox: bool) -> list[str]:
    """Judge the solutions in `gold` of the tasks in `where`, a run or a task file; the lines to print."""
    tasks, answers = read_tasks(where), read_answers(gold)
    solved = [task for task in tasks if task.task_id in answers]
    if not solved:
        raise StageError(f"{gold} has no solution of any task in {where}: their task_ids differ. "
                         "Correct them.")
    graders = graders_of(((task.kind, task.payload) for task in solved), import_path)
    verdicts: dict[str, GoldVerdict] = {}
    asked = solved
    for step in STEPS:
        cpu, wall = limits.cpu_seconds * step, limits.wall_seconds * step
        memory = limits.memory_mib * min(step, MOST_MEMORY)
        needs = f"--cpu-seconds {cpu:g} --memory-mib {memory}" if step > 1 else ""
        pool, best = open_lanes(
            tier, unsafe=unsafe_no_sandbox, num_lanes=lanes or usable_cores(), import_paths=import_path,
            limits=replace(limits, cpu_seconds=cpu, wall_seconds=wall, memory_mib=memory),
            imports=tuple(sorted(allow_import)), preload=(*preload, *graders.modules))
        with pool, Progress("gold", num_parts=1, num_done=0) as progress:
            judged = judge_gold(Executor(pool, isolated=best.isolated), asked, answers, progress.note_outcome)
        verdicts |= {verdict.task_id: replace(verdict, needs=needs) for verdict in judged}
        asked = [task for task in asked if verdicts[task.task_id].limited]
        if not asked:
            break
    if output:
        output.write_text("".join(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts.values()))
    return lines_of(list(verdicts.values()), len(tasks) - len(solved))


def judge_gold(executor: Executor, tasks: Sequence[GoldTask], answers: Mapping[str, Answer],
               finished: Callable[[Outcome], None]) -> list[GoldVerdict]:
    """Each solution as its task asks; where it fails apart from its tests, once more together with them."""
    def judged(asked: Sequence[GoldTask], **changes: str) -> dict[str, Judgement]:
        items = [Item(load_task(task.task_id, task.kind, {**task.payload, **changes}), answers[task.task_id])
                 for task in asked]
        rows = measure(items, run_programs(executor, items, finished))
        return {task.task_id: row for task, row in zip(asked, rows, strict=True)}

    first = judged(tasks)
    failed = [task for task in tasks if task.may_be_together and not first[task.task_id].measures.correct]
    second = judged(failed, mode="together")
    verdicts = []
    for task in tasks:
        apart, together = first[task.task_id], second.get(task.task_id)
        reasons = [reason_of(task, row) for row in (apart, together) if row and not row.measures.correct]
        is_together = together is not None and together.measures.correct
        is_right = apart.measures.correct or is_together
        limited = not is_right and any(word in reason for reason in reasons for word in LIMITED)
        verdicts.append(GoldVerdict(task.task_id, is_right, is_together, "".join(reasons[:1]), limited))
    return verdicts


def reason_of(task: GoldTask, row: Judgement) -> str:
    """Why a solution is not judged right: its error, or what of it was wrong."""
    outcome, given = row.outcome, row.measures.outputs
    words = [outcome.error_class and str(outcome.error_class), outcome.error_name, outcome.error_message]
    if any(words) or given is None or task.kind == "grid":
        return ": ".join(filter(None, words)) or f"wrong: {(given or '')[:200]}"
    lines = unit_lines(task.kind, task.payload, json.loads(given)["test"])
    return "; ".join(" ".join(line.split()) for line in lines if ": right" not in line)[:400]


def lines_of(verdicts: list[GoldVerdict], num_unsolved: int) -> list[str]:
    """How many are judged right, which run together with their tests, and which are not right."""
    conditions = {"together with their tests": [verdict.task_id for verdict in verdicts if verdict.together]}
    for verdict in verdicts:
        if verdict.right and verdict.needs:
            conditions.setdefault(f"with `score {verdict.needs}`", []).append(verdict.task_id)
    wrong = [verdict for verdict in verdicts if not verdict.right]
    lines = [f"{len(verdicts) - len(wrong)} of {len(verdicts)} canonical solutions are judged right"]
    for condition, names in conditions.items():
        listing = ", ".join(names[:SHOWN]) + (", .." if len(names) > SHOWN else "")
        lines += [f"  {len(names)} of them only {condition}: {listing}"] if names else []
    lines += [f"  not right: {verdict.task_id}: {verdict.reason}" for verdict in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        lines.append(f"  and {len(wrong) - SHOWN} more")
    if num_unsolved:
        lines.append(f"  no solution of {counted(num_unsolved, 'task')}")
    return lines


def read_tasks(where: Path) -> list[GoldTask]:
    """The tasks of a run, or of a file with one JSON object per line."""
    if where.is_dir():
        rows = open_warehouse(where).read("tasks", columns=["task_id", "kind", "payload"]).to_pylist()
        return [GoldTask(row["task_id"], row["kind"], json.loads(row["payload"])) for row in rows]
    return [GoldTask(task.task_id, task.kind, json.loads(task.payload)) for task in read_jsonl(where)]


def read_answers(gold: Path) -> dict[str, Answer]:
    """Solutions by task, from lines with task_id and `code` (a program) or `text` (a whole answer)."""
    answers = {}
    for where, row in json_lines(gold):
        text = row.get("text", row.get("code")) if isinstance(row, dict) else None
        if not isinstance(text, str) or "task_id" not in row:
            raise StageError(f"{where} is no object with task_id and code (a program) or text (a whole "
                             "answer). Correct it.")
        answers[str(row["task_id"])] = Answer(text, row.get("code", first_code_block(text)))
    return answers
