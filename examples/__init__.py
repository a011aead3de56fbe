"""Runnable examples: the starter policy and the demo's loop."""
