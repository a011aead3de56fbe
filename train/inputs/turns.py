"""Turns that follow from each other: which are trained, and what their prompts begin with; no torch."""

from collections.abc import Sequence

import numpy as np

from train.inputs.groups import Group, Key, load_groups
from train.inputs.options import TrainOptions
from train.objective.loss_table import find_loss
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import turn_of
from warehouse.store.run_folder import Warehouse


def load_turns(warehouse: Warehouse, iteration: int, scorer: str, settings: TrainOptions,
               base: str = "train") -> list[Group]:
    """Groups of all turns of an iteration that are trained."""
    groups = []
    for purpose in warehouse.state.turns(iteration, base) or [base]:
        turn = turn_of(purpose)
        if settings.turns and turn not in settings.turns:
            continue
        if scorer not in warehouse.state.scorers(iteration, purpose):
            what = (f"are not scored by {scorer}: run `score {shell_quote(warehouse.root)} "
                    f"--iteration {iteration}`"
                    if warehouse.stage("rollout", iteration=iteration, purpose=purpose).is_complete() else
                    f"are under way: finish `rollout {shell_quote(warehouse.root)} --turn {turn}` "
                    f"and score them")
            raise StageError(f"The turns {turn} of iteration {iteration} {what}, or train on others with "
                             "--turns.")
        alone = settings.advantages or settings.teacher or find_loss(settings.loss).correct_only
        groups += load_groups(warehouse, iteration, scorer, purpose=purpose, alone=bool(alone),
                              truncated_sampling=settings.truncated_sampling)
    return groups


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
