"""Judging a list of answers: run what is distinct, measure each, give the reward its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.outcomes import Outcome
from score.tasks.measures import Measures
from score.verdicts.completions import Item
from score.verdicts.samples import Scored


def execute(executor: Executor, items: Sequence[Item],
            finished: Callable[[Outcome], None]) -> list[list[Outcome]]:
    """The outcomes of every item, in order; equal programs are run once."""
    plans = [item.kind.programs(item.task, item.answer) for item in items]
    programs = [program for plan in plans if not isinstance(plan, Outcome) for program in plan]
    outcomes = iter(executor.run(programs, finished))
    return [[plan] if isinstance(plan, Outcome) else [next(outcomes) for _program in plan] for plan in plans]


def measure(items: Sequence[Item], outcomes: Sequence[list[Outcome]], scorer: Scorer) -> list[Scored]:
    """Compare with what was expected and compute the reward; equal answers to a task are measured once."""
    seen: dict[tuple[object, ...], Measures] = {}
    scored = []
    for item, found in zip(items, outcomes, strict=True):
        answer = item.answer
        key = (item.task_id, answer.flip, answer.rotations, answer.color_map, answer.code is None,
               *(id(outcome) for outcome in found))
        if key not in seen:
            seen[key] = item.kind.measure(item.task, answer, found)
        whole = together(found)
        parts = None if whole.infrastructure else {} if scorer.user else scorer.parts(seen[key])
        scored.append(Scored(answer, whole, seen[key], parts, item.split))
    return scored


def together(outcomes: list[Outcome]) -> Outcome:
    """One outcome for all processes of an answer: times added up, the first failure, infrastructure first."""
    if len(outcomes) == 1:
        return outcomes[0]
    failed = [outcome for outcome in outcomes if outcome.error_class is not None]
    usual = failed[0] if failed else outcomes[0]
    worst = next((outcome for outcome in failed if outcome.infrastructure), usual)
    return replace(worst, cpu_seconds=sum(outcome.cpu_seconds or 0.0 for outcome in outcomes),
                   wall_seconds=sum(outcome.wall_seconds or 0.0 for outcome in outcomes),
                   max_rss_mib=max(outcome.max_rss_mib or 0.0 for outcome in outcomes))
