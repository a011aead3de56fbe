"""Where a mathematical text puts its answer."""

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*+\{")


def boxed(text: str) -> str:
    r"""What stands in the last \boxed{} or \fbox{} of a text, braces inside it balanced; '' without one."""
    starts = [match.end() for match in BOX.finditer(text)]
    if not starts:
        return ""
    depth = 1
    for end in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[starts[-1]:end].strip()
    return ""
