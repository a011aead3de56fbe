"""The answer in a text: a program, or the content of a box."""

import re

# An unclosed block, which truncation leaves, does not match. Possessive: no backtracking over blanks, because
# each would start another search through the rest of the text.
CODE_BLOCK = re.compile(r"```python(?![A-Za-z0-9_])[ \t]*+\r?+\n?+(.*?)```", re.DOTALL)
BOX = re.compile(r"\\(?:boxed|fbox)\s*+\{")


def first_code_block(answer: str) -> str | None:
    """Text of the first closed ```python block, or None."""
    match = CODE_BLOCK.search(answer)
    return match.group(1) if match else None


def boxed(text: str) -> str:
    r"""The content of the last \boxed{} or \fbox{} of a text, with balanced braces; '' without one."""
    starts = [match.end() for match in BOX.finditer(text)]
    if not starts:
        return ""
    depth = 1
    for end in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[starts[-1]:end].strip()
    return ""
