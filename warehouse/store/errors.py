"""The one exception that a user sees: what is wrong and the way out, in one sentence; words of sentences."""

import resource
from shlex import quote


class StageError(Exception):
    """A problem that the user can mend; commands print it without a traceback and exit with `exit_code`."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """An error in one line, with its type."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:400].rstrip('.')}"


def printable(text: str, *, kept: str = "\n\t") -> str:
    """Foreign text made safe for a terminal: marks that steer it, but those `kept`, are spelled out."""
    return "".join(letter if letter.isprintable() or letter in kept else ascii(letter)[1:-1]
                   for letter in text)


def counted(number: int, noun: str, style: str = "") -> str:
    """`1 task`, `2 tasks`; with the style `,` `1,000 tasks`."""
    return f"{number:{style}} {noun}{'' if number == 1 else 's'}"


def shell_quote(word: object) -> str:
    """A word of a command that is printed to be pasted, in quotes where the shell needs them."""
    return quote(str(word))


def check_addresses(gib: float, what: str) -> None:
    """StageError where `ulimit -v` is below `gib`: native code would end the process without a word."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < gib * 2**30:
        raise StageError(f"{what} needs at least {gib:g} GiB of addresses, `ulimit -v` allows "
                         f"{limit / 2**30:.2g}. Raise it, then run the same command again.")
