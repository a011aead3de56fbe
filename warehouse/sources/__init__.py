"""Where tasks come from: what --tasks may name; imports tasks, stages and store."""
