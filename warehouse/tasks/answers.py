"""The answer in a text: what stands behind the thoughts, a program in it, or the content of a box."""

import re

# An unclosed block, which truncation leaves, does not match. Possessive: no backtracking over blanks, because
# each would start another search through the rest of the text.
CODE_BLOCK = re.compile(r"```python(?![A-Za-z0-9_])[ \t]*+\r?+\n?+(.*?)```", re.DOTALL)
BOX = re.compile(r"\\(?:boxed|fbox)\s*+\{")
# What models write where thoughts begin and end, for `re` and DuckDB. The last two of each are of Gemma 4 and
# GPT-OSS. A text of GPT-OSS without thoughts begins with their end.
THINK = r"(?:\w+:)?think(?::\w+)?"
START_OF_THOUGHTS = (rf"<{THINK}>|\[THINK\]|<\|START_THINKING\|>|<\|channel>thought"
                     r"|<\|channel\|>analysis<\|message\|>")
END_OF_THOUGHTS = (rf"</{THINK}>|\[/THINK\]|<\|END_THINKING\|>|<channel\|>"
                   r"|(?:^|<\|start\|>assistant)<\|channel\|>final<\|message\|>")
# The tokens of these, which the text of a completion has even if they are special ones.
MARK = re.compile(rf"</?{THINK}>|\[/?THINK\]|<\|(?:START|END)_THINKING\|>|<\|channel>|<channel\|>"
                  r"|<\|(?:start|channel|message)\|>")


def behind_thoughts(text: str) -> str:
    """What stands behind closed thoughts; all of a text without them."""
    ends = [match.end() for match in re.finditer(END_OF_THOUGHTS, text)]
    return text[ends[-1]:] if ends else text


def first_code_block(text: str) -> str | None:
    """Text of the first closed ```python block behind the thoughts, or None."""
    match = CODE_BLOCK.search(behind_thoughts(text))
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
