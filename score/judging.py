"""Judging a list of answers: run what is distinct, measure each, give the reward its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from score.completions import Item
from score.execution import Executor
from score.flight import Ending
from score.judge import outcome_of
from score.measures import Measures, TaskKind
from score.outcome import Outcome
from score.program import Program
from score.samples import Scored
from score.scorer import Scorer


def execute(executor: Executor, items: Sequence[Item],
            finished: Callable[[Outcome], None]) -> list[Outcome]:
    """The outcome of every item, in order; equal programs are run once."""
    planned = [item.kind.program(item.task, item.answer) for item in items]
    kinds: dict[bytes, TaskKind] = {plan.key: item.kind for plan, item in zip(planned, items, strict=True)
                                    if isinstance(plan, Program)}
    limits = executor.pool.limits

    def judge(program: Program, endings: list[Ending]) -> Outcome:
        return outcome_of(endings[0], kinds[program.key].decode, limits, isolated=executor.isolated)

    programs = [plan for plan in planned if isinstance(plan, Program)]
    outcomes = executor.run(programs, judge, finished)
    return [outcomes[plan.key] if isinstance(plan, Program) else plan for plan in planned]


def measure(items: Sequence[Item], outcomes: Sequence[Outcome], scorer: Scorer) -> list[Scored]:
    """Compare with what was expected and compute the reward; equal answers to a task are measured once."""
    seen: dict[tuple[object, ...], Measures] = {}
    scored = []
    for item, outcome in zip(items, outcomes, strict=True):
        answer = item.answer
        key = (item.task_id, answer.code, answer.flip, answer.rotations, answer.color_map, id(outcome))
        if key not in seen:
            seen[key] = item.kind.measure(item.task, answer, outcome)
        parts = None if outcome.infrastructure else scorer.parts(seen[key])
        scored.append(Scored(answer, outcome, seen[key], parts, item.split))
    return scored
