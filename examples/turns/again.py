"""Feedback for a policy that reads example pairs alone, as the starter does: the wrong ones again."""

from typing import Any


def again(_sample: dict[str, Any], shown: list[dict[str, Any]]) -> str:
    """The train pairs that the program got wrong, in the words of the format 'compact'."""
    wrong = [pair for pair in shown if pair["output"] != pair["expected"]]
    return "".join(f"In\n{rows(pair['input'])}Out\n{rows(pair['expected'])}" for pair in wrong or shown)


def rows(grid: list[list[int]]) -> str:
    """One line of digits per row."""
    return "".join("".join(map(str, row)) + "\n" for row in grid)
