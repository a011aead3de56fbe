"""Turns that follow from each other: the rewards they get, and what their prompts begin with; no torch."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from train.inputs.groups import Group, Key, load_groups
from train.inputs.settings import Settings
from train.objective.credit import credited_rewards
from train.objective.loss_table import LOSSES
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import turn_of
from warehouse.store.run_folder import Warehouse

DISCOUNT = 0.4      # what did best for Kevin, arXiv 2507.11948


def load_turns(warehouse: Warehouse, iteration: int, scorer: str, settings: Settings,
               base: str = "train") -> list[Group]:
    """Groups of all turns of an iteration that are trained, or whose rewards those may be credited with."""
    groups = []
    for purpose in warehouse.state.turns(iteration, base) or [base]:
        turn = turn_of(purpose)
        if settings.turns and turn not in settings.turns and (settings.credit in (None, "own")
                                                              or turn < min(settings.turns)):
            continue
        if scorer not in warehouse.state.scorers(iteration, purpose):
            what = (f"are not scored by {scorer}: run `score {shell_quote(warehouse.root)} "
                    f"--iteration {iteration}`"
                    if warehouse.stage("rollout", iteration=iteration, purpose=purpose).is_complete() else
                    f"are under way: finish `rollout {shell_quote(warehouse.root)} --turn {turn}` "
                    f"and score them")
            raise StageError(f"The turns {turn} of iteration {iteration} {what}, or train on others with "
                             "--turns.")
        groups += load_groups(warehouse, iteration, scorer, purpose=purpose,
                              truncated_sampling=settings.truncated_sampling,
                              alone=bool(settings.advantages) or LOSSES[settings.loss].correct_only)
    return groups


def credit_turns(groups: Sequence[Group], settings: Settings) -> list[Group]:
    """The groups that are trained, each completion with the reward of --credit and the key of what earned it.

    Turns of other iterations count for none: a row's key names its own.
    """
    places = [(group, place) for group in groups for place in range(len(group.rollouts))]
    keys = [key_of(group, place) for group, place in places]
    parents = [group.parent if group.parent and group.parent[0] == group.iteration else None
               for group, _ in places]
    discount = DISCOUNT if settings.discount is None else settings.discount
    credits = iter(credited_rewards(keys, parents, [group.rollouts[place].reward for group, place in places],
                                    credit=settings.credit or "own", discount=discount))
    credited = [replace(group, rollouts=tuple(
        replace(rollout, reward=reward, earned_by=None if place is None else keys[place])
        for rollout, (reward, place) in zip(group.rollouts, credits, strict=False))) for group in groups]
    return [group for group in credited if not settings.turns or turn_of(group.purpose) in settings.turns]


def key_of(group: Group, place: int) -> Key:
    """The key of one of its completions."""
    rollout = group.rollouts[place]
    return group.iteration, group.purpose, rollout.task_id, rollout.sample_index


def shared_prefixes(groups: Sequence[Group]) -> list[tuple[int | None, int]]:
    """Of each group the number of the group that its prompt goes on from, and how many tokens it has of that.

    They are the whole prompt there and a completion; (None, 0) where the tokens are not the same, the chat
    template having rewritten them, or where the parent is not among the groups.
    """
    places = {key_of(group, place): (number, place) for number, group in enumerate(groups)
              for place in range(len(group.rollouts))}
    origins: list[tuple[int | None, int]] = []
    for group in groups:
        number, place = places.get(group.parent, (None, 0)) if group.parent else (None, 0)
        origins.append((None, 0))
        if number is None or not group.verbatim or groups[number].temperature != group.temperature:
            continue
        before, continued = groups[number].prompt_ids, groups[number].rollouts[place].completion_ids
        prefix = np.concatenate([before, continued])
        if (len(before) > 1 and len(continued) and len(group.prompt_ids) > len(prefix)
                and np.array_equal(group.prompt_ids[:len(prefix)], prefix)):
            origins[-1] = number, len(prefix)
    return origins
