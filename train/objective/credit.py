"""Which reward a turn is given: its own, or one of the turns that follow from it, discounted."""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

CREDITS = ("own", "best", "last")


class Credit(NamedTuple):
    """A reward, NaN where it is missing, and the place of the completion that earned it: None for a mean."""

    reward: float
    earned_by: int | None


def credited_rewards(keys: Sequence[Hashable], parents: Sequence[Hashable | None],
                     rewards: Sequence[float], *, credit: str, discount: float) -> list[Credit]:
    """What each completion is credited with: once the discount for every turn from it to what earned it.

    A completion names its parent by its key; one whose parent is not among the keys is a first turn. 'best'
    is max(r, discount * max of its children's); 'last' is discount * mean of its children's, r where it has
    none. A missing reward (NaN) counts in neither; 'last' is missing where that of every child is.
    """
    places = {key: place for place, key in enumerate(keys)}
    children: list[list[int]] = [[] for _ in keys]
    order = []      # parents before children
    for place, parent in enumerate(parents):
        if parent in places and credit != "own":
            children[places[parent]].append(place)
        else:
            order.append(place)
    for place in order:
        order += children[place]
    credits = [Credit(reward, place) for place, reward in enumerate(rewards)]
    for place in reversed(order):
        known = [credits[child] for child in children[place] if not math.isnan(credits[child].reward)]
        if credit == "best":
            later = [Credit(discount * child.reward, child.earned_by) for child in known]
            present = [credits[place]] * (not math.isnan(rewards[place])) + later
            credits[place] = max(present, key=lambda each: each.reward, default=credits[place])
        elif children[place]:
            mean = discount * sum(child.reward for child in known) / len(known) if known else math.nan
            credits[place] = Credit(mean, known[0].earned_by if len(known) == 1 else None)
    return credits
