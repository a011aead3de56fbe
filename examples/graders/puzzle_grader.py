"""Puzzles: several answers in one text, found wherever they stand; the share that is right counts.

The payload holds {rows: {row: {column: answer}}, choices: {column: [values]}}, or {groups: [[word..]..]}.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

NOT_A_WORD = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
# Between two names these offer a choice; before a name those rule it out.
OR = re.compile(r"[\s*_`\"'()]*(?:or|and|/|,|&|\|)[\s*_`\"'()]*", re.IGNORECASE)
NOT = re.compile(r"(?:\b(?:not|never|neither|nor)|n't)\s+(?:(?:the|in|at|with|a)\s+)*[*_`\"'(]*$",
                 re.IGNORECASE)


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The share of cells or groups that a text has right, and what it says; guesses may not overlap."""
    groups = [sorted(map(str.casefold, group)) for group in payload.get("groups", [])]
    rows, choices = payload.get("rows", {}), payload.get("choices", {})
    given: list[Any] = given_groups(groups, text) if groups else given_cells(rows, choices, text)
    wanted: list[Any] = groups or [value for row in rows.values() for value in row.values()]
    right = [each in given and all(each == guess or set(each).isdisjoint(guess) for guess in given)
             for each in groups] if groups else [
        ours == theirs for ours, theirs in zip(given, wanted, strict=True)]
    return {"share": sum(right) / len(wanted), "shown": json.dumps(given)}


def given_cells(rows: dict[str, dict[str, str]], choices: dict[str, list[str]],
                text: str) -> list[str | None]:
    """What a text says of each cell, in the task's order; None where it says nothing, or leaves a choice."""
    given = []
    for row, cells in rows.items():
        others = [other for other in rows if other != row]
        passages = passages_of(row, others, text) if row else [text]
        for column in cells:
            given.append(cell_of(column, choices[column], passages, whole=not row))
    return given


def passages_of(row: str, others: list[str], text: str) -> list[str]:
    """Where a text speaks of a row: from its name to that of another; the last passage first.

    Of `House 2` the number alone will do where a line, or a cell of a table, begins with it.
    """
    def name_of(name: str) -> str:
        number = re.search(r"\d+$", name)
        short = rf"|^[ \t|*\-_`\"]*+{number[0]}(?=[ \t|*_`\"]*[|:.)\-])" if number else ""
        return rf"{NOT_A_WORD.format(re.escape(name))}{short}"

    anywhere = re.compile(rf"(?P<own>{name_of(row)})|{'|'.join(map(name_of, others)) or '(?!)'}",
                          re.IGNORECASE | re.MULTILINE)
    marks = list(anywhere.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]          # one, too, where nothing is marked
    return [text[mark.end():end] for mark, end in zip(marks, ends, strict=False) if mark["own"]][::-1]


def cell_of(column: str, values: list[str], passages: list[str], *, whole: bool) -> str | None:
    """The value of a column: behind its name, else in the last line or passage that names such a value."""
    label = re.compile(rf"^[ \t|*\-_`\"'#>]*+{re.escape(column)}[ \t*_`\"']*+[:=|\-][\s*_`\"']*(.+)$",
                       re.IGNORECASE | re.MULTILINE)
    if whole:
        labeled = [match[1] for match in label.finditer(passages[0])]
        lines = labeled[::-1] or passages[0].splitlines()[::-1]
    else:
        lines = passages
    for line in lines:
        said = mentions(values, line)
        if said:
            return chosen(said, line, first=not whole or line in labeled)
    return None


def mentions(values: Iterable[str], text: str) -> list[tuple[int, int, str]]:
    """Where a text names which of the values: begin, end and value, those after a `not` left out."""
    names = "|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))
    known = {value.casefold(): value for value in values}
    return [(match.start(), match.end(), known[match[0].casefold()])
            for match in re.finditer(NOT_A_WORD.format(f"(?:{names})"), text, re.IGNORECASE)
            if not NOT.search(text[max(0, match.start() - 40):match.start()])]


def chosen(said: list[tuple[int, int, str]], text: str, *, first: bool) -> str | None:
    """The only value named, or, where a label stands before it, the first, unless `or` offers another."""
    if len({value for _, _, value in said}) == 1:
        return said[0][2]
    offered = said[0][2] != said[1][2] and OR.fullmatch(text[said[0][1]:said[1][0]]) is not None
    return said[0][2] if first and not offered else None


def given_groups(groups: list[list[str]], text: str) -> list[list[str]]:
    """The last lines, or lists in brackets, that name as many different words as a group has."""
    words = sorted({word for group in groups for word in group})
    size = len(groups[0])
    lines = text.replace("]", "]\n").splitlines()
    named = [sorted({value for _, _, value in mentions(words, line)}) for line in lines]
    return [group for group in named if len(group) == size][-len(groups):]
