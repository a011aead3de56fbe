"""The program inside an answer."""

from __future__ import annotations

import re

# An unclosed block, which is what truncation leaves behind, does not match. Blanks are never given back: each
# would be another search through the rest of the text.
CODE_BLOCK = re.compile(r"```python(?![A-Za-z0-9_])[ \t]*+\r?+\n?+(.*?)```", re.DOTALL)


def first_code_block(answer: str) -> str | None:
    """Text of the first closed ```python block, or None."""
    match = CODE_BLOCK.search(answer)
    return match.group(1) if match else None
