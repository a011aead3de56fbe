"""Kinds of task: payload to programs, outcomes to measures; the one room that holds what is expected."""
