"""Credit of turns against exact fractions over every path of small trees."""

import itertools
import math
import random
from fractions import Fraction

import pytest

from train.objective.credit import credited_rewards

# a: two answers to it, one of which was answered three times; b: none; c: its answer could not be measured.
KEYS = ["b", "a", "c", "a1", "a2", "a11", "a12", "a13", "c1"]
PARENTS = [None, None, None, "a", "a", "a1", "a1", "a1", "c"]
REWARDS = [0.5, 0.25, 0.0, 0.125, 0.75, 1.0, 0.0, math.nan, math.nan]


def credited(credit, discount=0.5):
    values = credited_rewards(KEYS, PARENTS, REWARDS, credit=credit, discount=discount)
    return {key: (None if math.isnan(value) else value, None if by is None else KEYS[by])
            for key, (value, by) in zip(KEYS, values, strict=True)}


def test_own_rewards_are_what_was_measured():
    rewards = credited_rewards(KEYS, PARENTS, REWARDS, credit="own", discount=0.5)
    assert [by for _, by in rewards] == list(range(9))
    assert [reward for reward, _ in rewards[:7]] == REWARDS[:7] and math.isnan(rewards[7].reward)


def test_the_best_of_what_follows_is_discounted_once_per_turn():
    assert credited("best") == {"b": (0.5, "b"), "a": (0.375, "a2"), "c": (0.0, "c"), "a1": (0.5, "a11"),
                                "a2": (0.75, "a2"), "a11": (1.0, "a11"), "a12": (0.0, "a12"),
                                "a13": (None, "a13"), "c1": (None, "c1")}


def test_the_last_turns_count_by_their_mean_and_a_missing_one_is_never_a_0():
    assert credited("last") == {"b": (0.5, "b"), "a": (0.5 * (0.25 + 0.75) / 2, None), "c": (None, None),
                                "a1": (0.25, None), "a2": (0.75, "a2"), "a11": (1.0, "a11"),
                                "a12": (0.0, "a12"), "a13": (None, "a13"), "c1": (None, "c1")}


def paths(place, children):
    """What can follow from a completion, itself included: (number of turns later, completion)."""
    return [(0, place)] + [(turns + 1, last) for child in children[place]
                           for turns, last in paths(child, children)]


@pytest.mark.parametrize("seed", range(20))
def test_credit_is_that_of_every_path_through_a_random_tree(seed):
    draw = random.Random(seed)
    parents = [None if place < 3 or draw.random() < 0.1 else draw.randrange(place) for place in range(40)]
    rewards = [Fraction(draw.randrange(-8, 9), 8) for _ in parents]
    order = draw.sample(range(40), 40)      # rows come in no order
    discount = Fraction(draw.randrange(1, 9), 8)
    children = [[child for child, parent in enumerate(parents) if parent == place] for place in range(40)]
    given = [order, [parents[place] for place in order], [float(rewards[place]) for place in order]]
    best = credited_rewards(*given, credit="best", discount=float(discount))
    for place, (value, by) in zip(order, best, strict=True):
        turns = {last: after for after, last in paths(place, children)}
        assert value == float(max(discount**after * rewards[last] for last, after in turns.items()))
        assert value == float(discount ** turns[order[by]] * rewards[order[by]])

    def last(place):
        later = list(map(last, children[place]))
        return discount * sum(later) / len(later) if later else rewards[place]
    means = credited_rewards(*given, credit="last", discount=float(discount))
    for place, (value, _) in zip(order, means, strict=True):
        assert value == pytest.approx(float(last(place)), abs=1e-12)


def test_the_order_of_rows_changes_no_credit():
    for order in itertools.islice(itertools.permutations(range(9)), 0, 300_000, 9_973):
        shuffled = [[column[place] for place in order] for column in (KEYS, PARENTS, REWARDS)]
        values = credited_rewards(*shuffled, credit="last", discount=0.5)
        for key, (value, _) in zip(shuffled[0], values, strict=True):
            expected = credited("last")[key][0]
            assert math.isnan(value) if expected is None else value == pytest.approx(expected)
