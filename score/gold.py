"""Canonical solutions, which must be judged right, and cheats, which must not."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from score.cheats import paid_cheats
from score.display import Progress
from score.inspect.units import unit_lines
from score.judging.completions import Item, program_in
from score.judging.judge import Judgement, measure, run_programs
from score.options import LaneOptions, TierOptions
from score.sandbox.executor import Executor
from score.sandbox.limits import Limits
from score.sandbox.pool import usable_cores
from score.sandbox.program import Outcome
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import Task, graders_of, load_task
from score.tasks.measures import Answer
from warehouse.objects.bucket import is_address
from warehouse.sources.named import read_sources
from warehouse.store.errors import StageError, counted
from warehouse.store.run_folder import open_warehouse
from warehouse.tasks.answers import first_code_block
from warehouse.tasks.task_files import json_lines

SHOWN = 10          # solutions that are not judged right
STEPS = (1, 4, 16, 64)      # times the limits, for solutions that ran into them
MOST_MEMORY = 8             # times the limit on memory
PROGRAMS = ("grid", "function", "stdio")        # kinds solved by a program
CHANGES = '"in_place": true'
LIMITED = ("timeout", "memory", "MemoryError")      # words of an outcome that ran into a limit


@dataclass(frozen=True)
class GoldVerdict:
    """The verdict on a canonical solution.

    `limited` is true where it ran into a limit; `needs` are the options of `score` without which it does, or
    what the payload lacks for it to be right.
    `pays` says which programs that solve nothing pass all tests of the task, and the first of these tests;
    `pays_share` is the largest share of the tests that one of them passes.
    """

    task_id: str
    right: bool
    reason: str
    limited: bool
    needs: str = ""
    pays: str = ""
    pays_share: float = 0.0


def score_gold(where: str, gold: Path | None, output: Path | None, limits: Limits, lanes: LaneOptions,
               isolation: TierOptions) -> tuple[list[str], bool]:
    """Judge solutions of the tasks in `where`, a run or a source: lines to print, and whether all are right.

    Those in `gold` go before those that the source brings.
    """
    tasks, answers = read_tasks(where)
    unknown = list[str]()
    if gold:
        given = read_answers(gold)
        answers |= given
        unknown = sorted(given.keys() - {task_id for task_id, *_ in tasks})
    solved = [load_task(*task) for task in tasks if task[0] in answers]
    if not solved:
        raise StageError(f"{gold} has no solution of any task in {where}: their task_ids differ. Correct "
                         "them." if gold else f"{where} has no solutions; a run keeps none. Name the source "
                                              f"of its tasks, or a file of them: score gold {where} FILE.")
    graders = graders_of(((task.kind_name, task.payload) for task in solved), lanes.import_path)
    verdicts: dict[str, GoldVerdict] = {}
    paid, parts = dict[str, str](), dict[str, tuple[float, str]]()
    asked = solved
    for step in STEPS:
        cpu, wall = limits.cpu_seconds * step, limits.wall_seconds * step
        memory = limits.memory_mib * min(step, MOST_MEMORY)
        needs = f"--cpu-seconds {cpu:g} --memory-mib {memory}" if step > 1 else ""
        pool, best = open_lanes(
            isolation.tier, unsafe=isolation.unsafe_no_sandbox, num_lanes=lanes.lanes or usable_cores(),
            limits=replace(limits, cpu_seconds=cpu, wall_seconds=wall, memory_mib=memory),
            imports=tuple(sorted(lanes.allow_import)), preload=(*lanes.preload, *graders.modules),
            import_paths=lanes.import_path)
        with pool, Progress(f"gold, {cpu:g} s each", num_parts=1, num_done=0) as progress:
            executor = Executor(pool, isolated=best.isolated)
            judged = judge_gold(executor, asked, answers, progress.note_outcome)
            if step == 1:
                paid, parts = paid_cheats(executor, solved, progress.note_outcome)
                judged = [*judged, *judge_in_place(executor, asked, answers, judged, progress.note_outcome)]
        verdicts |= {verdict.task_id: replace(
            verdict, needs=verdict.needs or needs, pays=paid.get(verdict.task_id, ""),
            pays_share=1.0 if verdict.task_id in paid else parts.get(verdict.task_id, (0.0, ""))[0])
            for verdict in judged}
        asked = [task for task in asked if verdicts[task.task_id].limited]
        if not asked:
            break
    if output:
        output.write_text("".join(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts.values()))
    lines = lines_of(list(verdicts.values()), len(tasks) - len(solved))
    if unknown:
        lines.append(f"{counted(len(unknown), 'solution')} left out, for there is no such task: "
                     f"{listed(unknown)}")
    if parts:
        most = sorted(parts.items(), key=lambda item: (-item[1][0], item[0]))
        lines += [f"`--reward tests-share` would pay such programs a part of {counted(len(parts), 'task')}:"]
        lines += first_of(f"  {share:.2f} of {task}: {name}" for task, (share, name) in most)
    return lines, all(verdict.right for verdict in verdicts.values())


def judge_gold(executor: Executor, tasks: Sequence[Task], answers: Mapping[str, Answer],
               finished: Callable[[Outcome], None]) -> list[GoldVerdict]:
    items = [Item(task, answers[task.task_id]) for task in tasks]
    verdicts = []
    for task, row in zip(tasks, measure(items, run_programs(executor, items, finished)), strict=True):
        reason = "" if row.measures.correct else reason_of(task, row)
        verdicts.append(GoldVerdict(task.task_id, row.measures.correct, reason,
                                    limited=any(word in reason for word in LIMITED)))
    return verdicts


def judge_in_place(executor: Executor, tasks: Sequence[Task], answers: Mapping[str, Answer],
                   verdicts: Iterable[GoldVerdict], finished: Callable[[Outcome], None]) -> list[GoldVerdict]:
    """Other verdicts on solutions that would be right if the task said that what they change counts."""
    wrong = {verdict.task_id: verdict for verdict in verdicts if not (verdict.right or verdict.limited)}
    again = [load_task(task.task_id, task.kind_name, {**task.payload, "in_place": True})
             for task in tasks if task.task_id in wrong and "tests" in task.payload]
    return [replace(wrong[verdict.task_id], needs=CHANGES)
            for verdict in judge_gold(executor, again, answers, finished) if verdict.right]


def reason_of(task: Task, row: Judgement) -> str:
    """Why a solution is not judged right: its error, or the tests that failed."""
    error, given = row.outcome.said, row.measures.outputs
    if error or given is None or task.kind_name == "grid":
        return error or f"wrong: {(given or '')[:200]}"
    lines = unit_lines(task.kind_name, task.payload, json.loads(given)["test"])
    return "; ".join(" ".join(line.split()) for line in lines if ": right" not in line)[:400]


def lines_of(verdicts: list[GoldVerdict], num_unsolved: int) -> list[str]:
    """How many are judged right, with which limits, and which are not right."""
    wrong = [verdict for verdict in verdicts if not verdict.right]
    changing = [verdict.task_id for verdict in wrong if verdict.needs == CHANGES]
    lines = [f"{len(verdicts) - len(wrong)} of {len(verdicts)} canonical solutions are judged right"]
    for needs in dict.fromkeys(verdict.needs for verdict in verdicts if verdict.right and verdict.needs):
        names = [verdict.task_id for verdict in verdicts if verdict.right and verdict.needs == needs]
        lines.append(f"  {len(names)} of them only with `score {needs}`: {listed(names)}")
    if changing:
        lines.append(f"  {len(changing)} more with `{CHANGES}` in the payload: {listed(changing)}")
    lines += first_of(f"  not right: {verdict.task_id}: {verdict.reason}" for verdict in wrong
                      if verdict.task_id not in changing)
    if num_unsolved:
        lines.append(f"  no solution of {counted(num_unsolved, 'task')}")
    paying = [f"  {verdict.task_id}: {verdict.pays}" for verdict in verdicts if verdict.pays]
    pay = "pays" if len(paying) == 1 else "pay"
    lines.append(f"{len(paying)} of {counted(len(verdicts), 'task')} {pay} programs that solve nothing"
                 if paying else "no task pays programs that solve nothing")
    return lines + first_of(paying)


def listed(names: Sequence[str]) -> str:
    """The first names, and two dots for more."""
    return ", ".join(names[:SHOWN]) + (", .." if len(names) > SHOWN else "")


def first_of(lines: Iterable[str]) -> list[str]:
    """The first lines, and the number of the others."""
    first = list(lines)
    return first[:SHOWN] + [f"  and {len(first) - SHOWN} more"] * (len(first) > SHOWN)


def read_tasks(where: str) -> tuple[list[tuple[str, str, dict[str, Any]]], dict[str, Answer]]:
    """Id, kind and payload of the tasks of a run or of a source, and the solutions that a source brings."""
    if is_address(where) or Path(where).is_dir():
        rows = open_warehouse(where).read("tasks", columns=["task_id", "kind", "payload"]).to_pylist()
        return [(row["task_id"], row["kind"], json.loads(row["payload"])) for row in rows], {}
    tasks = [task for _source, task in read_sources((where,))]
    answers = {task.task_id: Answer(task.solution, program_in(task.solution) if task.kind in PROGRAMS
                                    else first_code_block(task.solution))
               for task in tasks if task.solution is not None}
    return [(task.task_id, task.kind, json.loads(task.payload)) for task in tasks], answers


def read_answers(gold: Path) -> dict[str, Answer]:
    """Solutions by task: lines with task_id and `code` or `solution` (a program) or `text` (an answer)."""
    answers = {}
    for where, row in json_lines(gold):
        if isinstance(row, dict) and "solution" in row:
            row.setdefault("code", program_in(str(row["solution"])))
        text = row.get("text", row.get("code")) if isinstance(row, dict) else None
        if not isinstance(text, str) or "task_id" not in row:
            raise StageError(f"{where} is not an object with task_id and code (a program) or text (a whole "
                             "answer). Correct it.")
        answers[str(row["task_id"])] = Answer(text, row.get("code", first_code_block(text)))
    return answers
