"""Judging completions: run the distinct programs, measure what they did, and give each its reward."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from score.judging.completions import Item
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.program import Outcome, Program
from score.tasks.measures import Measures
from warehouse.stages.user_code import UserFunction
from warehouse.store.errors import StageError

Terms = dict[str, float] | None
# Columns that the user's reward sees besides the task's: of what was measured, and of the completions.
MEASURED = ("correct", "valid_outputs", "correct_share", "pixel_score")
STORED = ("finish_reason", "num_completion_tokens", "sample_index", "group_id", "policy_version")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Outcome and measures of one completion."""

    outcome: Outcome
    measures: Measures


def run_programs(executor: Executor, items: Sequence[Item],
                 finished: Callable[[Outcome], None] = lambda _outcome: None) -> list[list[Outcome]]:
    """The outcomes of every item, in order; equal programs are run once."""
    plans = plans_of(items)
    programs = [program for plan in plans if not isinstance(plan, Outcome) for program in plan]
    outcomes = iter(executor.run(programs, finished))
    return [[plan] if isinstance(plan, Outcome) else [next(outcomes) for _program in plan] for plan in plans]


def plans_of(items: Sequence[Item]) -> list[list[Program] | Outcome]:
    """The programs to run of each item, or its outcome where there is none to run."""
    return [item.task.kind.programs(item.task.content, item.answer) for item in items]


def measure(items: Sequence[Item], outcomes: Sequence[list[Outcome]]) -> list[Judgement]:
    """Compare outcomes with what was expected; equal answers to a task are measured once."""
    seen: dict[tuple[object, ...], Judgement] = {}
    judgements = []
    for item, own in zip(items, outcomes, strict=True):
        task, answer = item.task, item.answer
        key = (task.task_id, answer.flip, answer.rotations, answer.color_map, answer.code is None,
               *(id(outcome) for outcome in own))
        if key not in seen:
            seen[key] = Judgement(join_outcomes(own), task.kind.measure(task.content, answer, own))
        judgements.append(seen[key])
    return judgements


def join_outcomes(outcomes: list[Outcome]) -> Outcome:
    """One outcome for all processes of an answer: times added up, the worst failure or else the first."""
    if len(outcomes) == 1:
        return outcomes[0]
    failed = [outcome for outcome in outcomes if outcome.error_class is not None]
    usual = failed[0] if failed else outcomes[0]
    worst = next((outcome for outcome in failed if outcome.infrastructure), usual)
    return replace(worst, cpu_seconds=sum(outcome.cpu_seconds or 0.0 for outcome in outcomes),
                   wall_seconds=sum(outcome.wall_seconds or 0.0 for outcome in outcomes),
                   max_rss_mib=max(outcome.max_rss_mib or 0.0 for outcome in outcomes))


def reward_terms(items: Sequence[Item], judgements: Sequence[Judgement], scorer: Scorer,
                 completions: pa.Table) -> list[Terms]:
    """The terms of every reward; None where nothing could be measured, or none applies.

    The user's function sees whole columns, by name.
    """
    if scorer.user is None:
        return registered_terms(items, judgements, scorer)
    rows = [row_of_user(item, judgement) for item, judgement in zip(items, judgements, strict=True)]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain(*rows))}
    columns |= {name: completions.column(name).to_pylist() for name in STORED}
    rewards = rewards_of(scorer.user, [item.prompt for item in items], [item.answer.text for item in items],
                         completions.column("completion_ids").to_pylist(), columns)
    return [None if judgement.outcome.infrastructure else parts
            for judgement, parts in zip(judgements, rewards, strict=True)]


def registered_terms(items: Sequence[Item], judgements: Sequence[Judgement], scorer: Scorer) -> list[Terms]:
    """The terms of the scorer's registered reward, none where the user's file decides."""
    return [None if judgement.outcome.infrastructure or judgement.measures.hidden
            else scorer.terms(item.task.kind_name, judgement.measures)
            for item, judgement in zip(items, judgements, strict=True)]


def row_of_user(item: Item, judgement: Judgement) -> dict[str, Any]:
    """What the user's function sees of a completion: its task's payload, and what was measured."""
    task, measures, error_class = item.task, judgement.measures, judgement.outcome.error_class
    unknown = {"correct": None} if judgement.outcome.infrastructure or measures.hidden else {}
    return {**task.payload, "task_id": task.task_id, "split": item.split, "kind": task.kind_name,
            "payload": task.payload, "code": item.answer.code,
            "outputs": json.loads(measures.outputs or "null"),
            "error_class": error_class and str(error_class),
            **{name: getattr(measures, name) for name in MEASURED}, **unknown}


def rewards_of(user: UserFunction, prompts: list[str], completions: list[str],
               completion_ids: list[list[int]], columns: dict[str, list[Any]]) -> list[Terms]:
    """What `f(prompts, completions, completion_ids=None, **columns)` gives, sync or async.

    For each completion a number, its parts by name, or None where the reward does not apply; StageError for
    anything else.
    """
    where = f"The reward {user.name} in {user.path}"
    after = "Nothing of this part was written; correct it and run `score` again."
    own = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
    given = user.call(where, after, **{**own, **columns, **own})       # whatever fields the payload has
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise StageError(f"{where} returned {type(given).__name__}, not a list with one number per "
                         f"completion. {after}")
    if len(given) != len(completions):
        raise StageError(f"{where} returned {len(given)} rewards for {len(completions)} completions. {after}")
    rewards: list[Terms] = []
    for index, value in enumerate(given):
        try:
            rewards.append(parts_of(value, user.name))
        except (TypeError, ValueError, OverflowError) as error:
            raise StageError(f"{where} returned {value!r} for completion {index} of the part: a reward is a "
                             "finite number, a dict of finite numbers that are added up, or None where it "
                             "does not apply.") from error
    return rewards


def parts_of(value: Any, name: str) -> Terms:
    """The parts of a user's reward that apply, by this name if it is one number; ValueError if not finite."""
    given = value if isinstance(value, Mapping) else {name: value}
    parts = {str(part): number for part, number in given.items() if number is not None}
    if not math.isfinite(math.fsum(parts.values())):
        raise ValueError
    return None if given and not parts else {part: float(number) for part, number in parts.items()}
