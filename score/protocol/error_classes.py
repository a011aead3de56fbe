"""The enumerated kinds of failure; imported by lanes, so it may import nothing that costs memory."""

from enum import StrEnum


class ErrorClass(StrEnum):
    """Kinds of failure; those of a program cost it the reward, those of INFRASTRUCTURE never do."""

    PARSING = "parsing"                        # no closed code block in the answer
    SOURCE_TOO_LARGE = "source_too_large"
    SYNTAX = "syntax"                          # anything that the compiler raises
    MISSING_FUNCTION = "missing_function"      # the function asked for is not there, or not callable
    IMPORT_NOT_ALLOWED = "import_not_allowed"
    RUNTIME = "runtime"                        # error_name says which exception
    RECURSION = "recursion"
    MEMORY = "memory"
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    INVALID_OUTPUT = "invalid_output"          # error_name: type, shape, range or count
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_VIOLATION = "sandbox_violation"    # it asked the kernel for something that is denied
    CRASHED = "crashed"                        # killed by a signal of its own making; error_name: the signal
    NO_RESULT = "no_result"                    # the process ended without a well-formed answer
    LANE_LOST = "lane_lost"                    # infrastructure: the process that forks went away
    SPAWN_FAILED = "spawn_failed"              # infrastructure: no fork, or it failed before the program
    KILLED_OUTSIDE = "killed_outside"          # infrastructure: SIGKILL that no limit of ours explains
    UNTESTABLE = "untestable"                  # infrastructure: the task's tests cannot be run


INFRASTRUCTURE = frozenset({ErrorClass.LANE_LOST, ErrorClass.SPAWN_FAILED, ErrorClass.KILLED_OUTSIDE,
                            ErrorClass.UNTESTABLE})

# Classes that a child may claim in its frame. The lane or the scorer concludes all others, so that no
# program can ask for a retry or for a null reward.
CHILD_CLASSES: tuple[ErrorClass, ...] = (
    ErrorClass.SYNTAX, ErrorClass.MISSING_FUNCTION, ErrorClass.IMPORT_NOT_ALLOWED, ErrorClass.RUNTIME,
    ErrorClass.RECURSION, ErrorClass.MEMORY, ErrorClass.INVALID_OUTPUT, ErrorClass.OUTPUT_LIMIT,
    ErrorClass.SANDBOX_VIOLATION)
