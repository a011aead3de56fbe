"""The compact prompt format: a few small example pairs as bare rows of digits, nothing else."""

from collections.abc import Sequence
from typing import Any

MIN_PAIRS = 2


def choose_pairs(pairs: Sequence[dict[str, Any]], *, max_pairs: int = 3,
                 max_characters: int = 700) -> list[int]:
    """Indices of the pairs to show, in their original order: the smallest first while they fit.

    The two smallest are always taken, so that a rule can be told from them; whoever sends the prompt
    leaves out those that are still too long.
    """
    lengths = [len(render_pair(pair)) for pair in pairs]
    chosen: list[int] = []
    num_characters = 0
    for index in sorted(range(len(pairs)), key=lambda index: lengths[index])[:max_pairs]:
        num_characters += lengths[index]
        if len(chosen) >= MIN_PAIRS and num_characters > max_characters:
            break
        chosen.append(index)
    return sorted(chosen)


def render_pairs(pairs: Sequence[dict[str, Any]]) -> str:
    """Text of the pairs: 'In', rows of digits, 'Out', rows of digits, each line closed."""
    return "".join(render_pair(pair) for pair in pairs)


def render_pair(pair: dict[str, Any]) -> str:
    """Text of one pair."""
    return f"In\n{render_grid(pair['input'])}Out\n{render_grid(pair['output'])}"


def render_grid(grid: Sequence[Sequence[int]]) -> str:
    """One line of digits per row, no separators."""
    return "".join("".join(map(str, row)) + "\n" for row in grid)
