"""Rows in and out of a run; imports store and sql."""
