"""The inputs of a stage, options and stored rows, checked before torch loads: imports no torch."""
