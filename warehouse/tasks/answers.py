"""The answer in a text: what stands behind the thoughts, a program in it, or the content of a box."""

import re

# Possessive: no backtracking over blanks, because each would start another search through the rest.
# Before a fence: blanks, or marks of a list or a quotation.
MARGIN = r"^((?:[ \t>]|(?:[-*+]|\d++[.)])(?=[ \t]))*+)"
BLOCK = re.compile(rf"(?:{MARGIN})?(?<![`~])(```|(?(1)~~~|(?!)))[`~]*+ ?(?:[Pp]ython|PYTHON|py)[\d.]*+"
                   r"(?![\w`~])(?:[ \t:][\w./-]*\.py(?=[ \t]*+\r?+$))?+[ \t]*+(\r?+\n)?+", re.MULTILINE)
FENCE = re.compile(rf"{MARGIN}(```)`*+[ \t]*+(\r?+\n)?+", re.MULTILINE)
BOX = re.compile(r"\\(?:boxed|fbox)\s*+(?:\{|(-?\d++(?:[.,/]\d++)*+))")
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
    """What stands behind closed thoughts and before a line that opens others; all of a text without them."""
    ends = [match.end() for match in re.finditer(END_OF_THOUGHTS, text)]
    rest = text[ends[-1]:] if ends else text
    return re.sub(rf"(?:^|\n)[^\S\n]*+(?:{START_OF_THOUGHTS}).*", "", rest, flags=re.DOTALL)


def first_code_block(text: str) -> str | None:
    """The program in the first ```python block behind the thoughts; None where truncation left it unclosed.

    Where no block is of Python it is in the first, if that names no language. It ends at a line that begins
    with ```, less indented than a docstring in the program; at one glued to the last line; else at any.
    """
    text = behind_thoughts(text)
    begin = BLOCK.search(text) or FENCE.search(text)
    if begin is None or (begin.re is FENCE and begin[3] is None):
        return None
    margin, fence = (begin[1] or "").expandtabs(4), begin[2]
    indent, blanks = len(margin), " \t>" if ">" in margin else " \t"
    closing = rf"^[{blanks}]{{0,{indent + 3}}}{fence}|(?<=[^\s`~#]){fence}[`~]*+[ \t]*+\r?$"
    end = (re.compile(closing if begin[3] else fence, re.MULTILINE).search(text, begin.end())
           or re.compile(fence).search(text, begin.end()))
    body = text[begin.end():end.start()] if end else ""
    first = next((line for line in body.splitlines() if line.strip(blanks)), "")     # not indented in itself
    indent = min(indent, len(first) - len(first.lstrip(blanks)))
    return end and re.sub(rf"^[{blanks}]{{0,{indent}}}", "", body, flags=re.MULTILINE)


def boxed(text: str) -> str:
    r"""The content of the last \boxed{} or \fbox{} of a text, with balanced braces; '' without one."""
    *_, box = None, *BOX.finditer(text)
    if box is None or box[1]:           # TeX needs no braces
        return box[1] if box else ""
    depth = 1
    for end in range(box.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[box.end():end].strip()
    return ""
