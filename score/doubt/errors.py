"""Exceptions in the place of an exception that a test expects."""

import builtins

OTHER_ERRORS = ("ValueError", "TypeError", "KeyError", "IndexError", "ZeroDivisionError", "AttributeError",
                "RuntimeError", "EOFError", "ImportError", "BufferError")
ANY_ERROR = frozenset({"Exception", "BaseException", "AssertionError"})


def unrelated_errors(name: str) -> list[str]:
    """Exceptions that are no base and no subclass of a builtin one."""
    known = getattr(builtins, name, None)
    return [other for other in OTHER_ERRORS if isinstance(known, type) and not issubclass(
        known, getattr(builtins, other)) and not issubclass(getattr(builtins, other), known)]
