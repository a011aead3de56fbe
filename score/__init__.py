"""Completions to rewards and metrics: the only room that runs foreign code."""
