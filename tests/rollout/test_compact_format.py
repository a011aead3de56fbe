"""The compact prompt format: which pairs are shown, and their exact text."""

from hypothesis import given
from hypothesis import strategies as st

from rollout.prompts.formats import choose_pairs, render_pair, render_pairs


def square_pair(side: int) -> dict:
    grid = [[side % 10] * side for _ in range(side)]
    return {"input": grid, "output": grid}


def test_text_of_two_pairs():
    pairs = [{"input": [[1, 2], [3, 4]], "output": [[9]]}, {"input": [[0]], "output": [[5, 5]]}]
    assert render_pairs(pairs) == "In\n12\n34\nOut\n9\nIn\n0\nOut\n55\n"


def test_the_smallest_are_shown_in_their_original_order():
    assert choose_pairs([square_pair(side) for side in (6, 3, 5, 2)]) == [1, 2, 3]


def test_a_pair_past_the_budget_is_left_out_but_two_always_stay():
    pairs = [square_pair(side) for side in (20, 4, 25, 3)]
    assert choose_pairs(pairs) == [1, 3]
    assert choose_pairs(pairs, max_characters=1000) == [0, 1, 3]
    assert choose_pairs([square_pair(25), square_pair(30)]) == [0, 1]
    assert choose_pairs([square_pair(25)]) == [0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 4), st.integers(50, 900))
def test_chosen_pairs_keep_every_promise(sides, max_pairs, max_characters):
    pairs = [square_pair(side) for side in sides]
    chosen = choose_pairs(pairs, max_pairs=max_pairs, max_characters=max_characters)
    assert chosen == sorted(set(chosen)) and 1 <= len(chosen) <= max_pairs
    assert len(chosen) >= min(2, max_pairs, len(pairs))
    left_out = [sides[index] for index in range(len(sides)) if index not in chosen]
    assert not left_out or max(sides[index] for index in chosen) <= min(left_out)
    if len(chosen) > 2:
        assert sum(len(render_pair(pairs[index])) for index in chosen) <= max_characters
