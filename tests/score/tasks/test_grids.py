"""Augmentation, the ARC metrics and the rewards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from score.rewards.scorer import Scorer
from score.tasks.grid import pixel_score, split_score
from score.tasks.measures import Measures, SplitScore
from warehouse.tasks.augmentation import augment, undo

GRIDS = arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.integers(0, 9))


@given(GRIDS, st.sampled_from([None, False, True]), st.sampled_from([None, 0, 1, 2, 3]),
       st.none() | st.permutations(range(10)))
def test_undo_gives_back_what_was_augmented(grid, flip, rotations, color_map):
    shown = augment(grid, flip, rotations, color_map)
    assert np.array_equal(undo(shown, flip, rotations, color_map), grid)
    assert np.array_equal(augment(undo(grid, flip, rotations, color_map), flip, rotations, color_map), grid)


def test_augmentation_flips_then_turns_then_recolours():
    color_map = [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]
    grid = np.array([[1, 2, 3], [4, 5, 6]])
    assert augment(grid, True, 1, color_map).tolist() == [[2, 4], [1, 5], [3, 6]]


def test_a_colour_map_that_is_no_permutation_is_refused():
    with pytest.raises(ValueError, match=r"each of 0\.\.9 once"):
        augment(np.array([[1]]), None, None, [0, 0, 2, 3, 4, 5, 6, 7, 8, 9])


def overlap_by_hand(first: np.ndarray, second: np.ndarray) -> int:
    best = 0
    for down in range(-second.shape[0] + 1, first.shape[0]):
        for right in range(-second.shape[1] + 1, first.shape[1]):
            equal = sum(0 <= r + down < first.shape[0] and 0 <= c + right < first.shape[1]
                        and first[r + down, c + right] == second[r, c]
                        for r in range(second.shape[0]) for c in range(second.shape[1]))
            best = max(best, equal)
    return best


@given(GRIDS, GRIDS)
def test_pixel_score_agrees_with_the_definition(first, second):
    if first.shape == second.shape:
        expected = float(np.mean(first == second))
    else:
        area = max(first.shape[0], second.shape[0]) * max(first.shape[1], second.shape[1])
        expected = overlap_by_hand(first, second) / area
    assert pixel_score(first, second) == expected


def test_pixel_score_of_other_shapes():
    ten = np.arange(100).reshape(10, 10) % 7
    assert pixel_score(np.array([[3]]), ten) == 0.01
    assert pixel_score(np.full((2, 2), 8), ten) == 0.0
    assert pixel_score(ten[2:5, 3:9], ten) == 18 / 100


def test_split_score_counts_exact_grids_and_nothing_without_outputs():
    target = [np.array([[1, 2]]), np.array([[3, 4]])]
    score = split_score([np.array([[1, 2]]), np.array([[3, 9]])], target)
    assert (score.pixel_score, score.correct_grids, score.is_correct) == (0.75, 0.5, False)
    assert split_score(None, target) == SplitScore(2, 0.0, 0.0)
    assert not split_score([], []).is_correct


SOLVED = Measures(True, True, SplitScore(3, 1.0, 1.0), SplitScore(1, 1.0, 1.0))
HALF = Measures(True, True, SplitScore(3, 0.8, 2 / 3), SplitScore(1, 0.4, 0.0))     # CG 1/2, PS .7
INVALID = Measures(True, False, SplitScore(3, 0.0, 0.0), SplitScore(1, 0.0, 0.0))
NO_CODE = Measures(False, False, SplitScore(3, 0.0, 0.0), SplitScore(1, 0.0, 0.0))


@pytest.mark.parametrize(("reward", "solved", "half", "invalid", "no_code"), [
    ("arc-v1", 10.0, 1 + 8 * 0.5 + 0.7, 0.0, 0.0),
    ("arc-v2-no-pixel-score", 10.0, 5.5, 0.0, 0.0),
    ("arc-exact-shaped", 1.0, 0.05, -0.1, -0.1),
    ("exact", 1.0, 0.0, 0.0, 0.0),
    ("tests-share", 1.0, 0.5, 0.0, 0.0),
])
def test_rewards(reward, solved, half, invalid, no_code):
    scorer = Scorer(reward)
    values = [sum(scorer.terms("grid", measures).values()) for measures in (SOLVED, HALF, INVALID, NO_CODE)]
    assert values == pytest.approx([solved, half, invalid, no_code])
    assert (values[3], values[0]) == scorer.bounds("grid")
