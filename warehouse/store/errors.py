"""The one exception that a user sees: what is wrong and the way out, in one sentence."""


class StageError(Exception):
    """A problem that the user can mend; commands print it without a traceback and exit with `exit_code`."""

    exit_code = 1
