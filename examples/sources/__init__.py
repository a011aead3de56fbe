"""Tasks of published sets, as functions that `--tasks FILE.py:NAME?option=value` calls."""
