"""Puzzles of our own with exactly one solution: mysteries, zebra grids, groups of words."""
