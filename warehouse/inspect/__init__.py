"""Output about a run: reads through sql and stages, writes no row."""
