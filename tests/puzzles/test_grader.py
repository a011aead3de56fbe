"""Puzzle tasks: right answers in any harmless wording are right, garbage is not, and the share counts."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.graders.puzzle_grader import grade
from score.protocol.plain_data import tag
from score.sandbox.program import Outcome
from score.tasks.kinds import load_task
from score.tasks.measures import Answer, Measures

CHOICES = {
    "who": ["Ada Finch", "Bruno Hale", "Clara Voss"],
    "where": ["attic", "cellar", "hall"],
    "when": ["six o'clock", "seven o'clock"],
    "with what": ["rope", "dagger", "pistol"],
}
VALUES = {
    "name": ["Anna", "Ben", "Carla", "David"],
    "colour": ["red", "green", "blue", "white"],
    "pet": ["dog", "cat", "fox", "snail"],
}
GROUPS = [
    ["lime", "olive", "orange", "peach"],
    ["amber", "indigo", "ivory", "violet"],
    ["frank", "grant", "robin", "victor"],
    ["drill", "file", "plane", "spade"],
]
THOUGHTS = (
    "Let me think. Ada Finch was in the hall at six o'clock, so not with the rope. "
    "In House 1 there is no dog, "
    "and House 2 is not red; Ben or Carla could be in house 3.\n"
    "1. lime and orange are fruits\n2. maybe drill, file, lime, amber?\n\n"
)


def measured(payload: dict[str, Any], text: str) -> Measures:
    """What the grader says of a text, as it crosses from a lane."""
    payload = {"grader": "puzzle_grader", **payload}
    outcome = Outcome(result=[["value", tag(grade(text, payload))]])
    task = load_task("t", "graded", payload)
    return task.kind.measure(task.content, Answer(text, None), [outcome])


Told = dict[str, str]
LINES: dict[str, Callable[[Told], str]] = {
    "as asked": lambda told: "\n".join(f"{label}: {value}" for label, value in told.items()),
    "bold": lambda told: "\n".join(f"**{label.title()}:** {value}." for label, value in told.items()),
    "a list": lambda told: "\n".join(f"- {label} = the {value.upper()}" for label, value in told.items()),
    "a table": lambda told: (
        "| question | answer |\n|---|---|\n"
        + "\n".join(f"| {label} | {value} |" for label, value in told.items())
    ),
    "JSON": lambda told: "```json\n" + json.dumps(told, indent=2) + "\n```",
    "with reasons": lambda told: "\n".join(
        f"{label}: {value}, because Bruno Hale was in the cellar at seven o'clock with the pistol"
        for label, value in told.items()
    ),
    "a sentence": lambda told: (
        f"So it was {told['who']} in the {told['where']} at {told['when']} with the {told['with what']}!"
    ),
    "sentences": lambda told: (
        f"The murderer is {told['who']}.\nIt was at {told['when']}.\nThe weapon: the "
        f"{told['with what']}\nIt happened in the *{told['where']}*.\n"
    ),
}


@given(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}),
    st.sampled_from(sorted(LINES)),
    st.booleans(),
)
def test_a_right_mystery_is_right_in_any_wording(told: Told, wording: str, aloud: bool) -> None:
    text = (THOUGHTS if aloud else "") + LINES[wording](told)
    row = measured({"rows": {"": told}, "choices": CHOICES}, text)
    assert (row.correct, row.correct_share) == (True, 1.0), text
    other = {**told, "who": next(name for name in CHOICES["who"] if name != told["who"])}
    assert measured({"rows": {"": other}, "choices": CHOICES}, text).correct_share == 0.75


Rows = dict[str, Told]
GRIDS: dict[str, Callable[[Rows], str]] = {
    "as asked": lambda rows: "\n".join(
        f"{house}: " + ", ".join(f"{name} {value}" for name, value in row.items())
        for house, row in rows.items()
    ),
    "a table": lambda rows: (
        "| House | name | colour | pet |\n|---|---|---|---|\n"
        + "\n".join(f"| {house[-1]} | " + " | ".join(row.values()) + " |" for house, row in rows.items())
    ),
    "a table of houses": lambda rows: "\n".join(
        f"| **{house}** | " + " | ".join(row.values()) + " |" for house, row in rows.items()
    ),
    "JSON": lambda rows: json.dumps(rows, indent=1),
    "JSON in a line": lambda rows: json.dumps(rows),
    "headings": lambda rows: "\n\n".join(
        f"### {house.upper()}\n\n"
        + "\n".join(f"- {name.title()}: **{value}**" for name, value in row.items())
        for house, row in rows.items()
    ),
    "sentences": lambda rows: " ".join(
        f"{house} is {row['colour']}; {row['name']} lives there with a {row['pet']}."
        for house, row in rows.items()
    ),
    "numbered": lambda rows: "\n".join(
        f"{house[-1]}. " + ", ".join(row.values()) for house, row in rows.items()
    ),
}


@given(
    st.tuples(*(st.permutations(values) for values in VALUES.values())),
    st.sampled_from(sorted(GRIDS)),
    st.booleans(),
)
def test_a_right_grid_is_right_in_any_wording(columns: Any, wording: str, aloud: bool) -> None:
    rows = {
        f"House {house + 1}": dict(zip(VALUES, values, strict=True))
        for house, values in enumerate(zip(*columns, strict=True))
    }
    text = (THOUGHTS if aloud else "") + GRIDS[wording](rows)
    assert measured({"rows": rows, "choices": VALUES}, text).correct_share == 1.0, text
    swapped = rows | {
        "House 1": rows["House 1"] | {"pet": rows["House 2"]["pet"]},
        "House 2": rows["House 2"] | {"pet": rows["House 1"]["pet"]},
    }
    assert measured({"rows": swapped, "choices": VALUES}, text).correct_share == pytest.approx(10 / 12)


GROUPINGS: dict[str, Callable[[list[list[str]]], str]] = {
    "as asked": lambda groups: "\n".join(", ".join(group) for group in groups),
    "named": lambda groups: "\n".join(
        f"{number}. **Things**: {' / '.join(group).upper()}" for number, group in enumerate(groups, 1)
    ),
    "JSON": lambda groups: json.dumps(groups),
    "JSON in lines": lambda groups: json.dumps({"groups": groups}),
}


@given(st.permutations(GROUPS), st.sampled_from(sorted(GROUPINGS)), st.booleans(), st.randoms())
def test_right_groups_are_right_in_any_order_and_wording(
    groups: list[list[str]], wording: str, aloud: bool, rng: Any
) -> None:
    shuffled = [rng.sample(group, 4) for group in groups]
    text = (THOUGHTS if aloud else "") + GROUPINGS[wording](shuffled)
    assert measured({"groups": GROUPS}, text).correct_share == 1.0
    mixed = [[*shuffled[0][:3], shuffled[1][3]], [*shuffled[1][:3], shuffled[0][3]], *shuffled[2:]]
    assert measured({"groups": GROUPS}, GROUPINGS[wording](mixed)).correct_share == 0.5


NAMED = ("ada finch", "hall", "six o'clock", "rope")
TOLD = {"who": "Ada Finch", "where": "hall", "when": "six o'clock", "with what": "rope"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo bar",
        "I cannot know.",
        "who: ..\nwhere: ..\nwhen: ..\nwith what: ..",
        "who: Ada Finch or Bruno Hale\nwhere: hall/attic\nwhen: six o'clock, seven o'clock\nwith what: rope & dagger",  # noqa: E501
        "It was Ada Finch, Bruno Hale or Clara Voss.",
        "who: not Ada Finch\nwhere: not in the hall",
        "hallway, ropes",
        "Ada Finch, Bruno Hale, Clara Voss; attic, cellar, hall; six o'clock, seven o'clock; rope, dagger, pistol",  # noqa: E501
    ],
)
def test_garbage_lists_and_denials_are_worth_nothing(text: str) -> None:
    assert measured({"rows": {"": TOLD}, "choices": CHOICES}, text).correct_share == 0.0


def test_all_groupings_at_once_are_not_an_answer() -> None:
    every = [[*GROUPS[first][:3], GROUPS[second][3]] for first in range(4) for second in range(4)]
    text = "\n".join(", ".join(group) for group in GROUPS + every[1:])
    assert measured({"groups": GROUPS}, text).correct_share <= 0.25


def test_guesses_that_share_words_are_none() -> None:
    spread = "\n".join(" ".join([*GROUPS[0][:3], last]) for last in ("peach", "amber", "frank", "drill"))
    assert measured({"groups": GROUPS}, spread).correct_share == 0.0
    twice = "\n".join(", ".join(group) for group in (*GROUPS[:2], GROUPS[0]))
    assert measured({"groups": GROUPS}, twice).correct_share == 0.5


@pytest.mark.parametrize("piece", ["\n", "\n- ", " ", "*", "|", "name\n", "name ", "1|", "House 1 |"])
def test_a_long_answer_is_graded_in_time_that_grows_with_it(piece: str) -> None:
    started = time.process_time()
    for row in ("", "House 1"):
        payload = {"rows": {row: {"name": "Ben"}}, "choices": VALUES}
        assert measured(payload, "name: Anna" + piece * (100_000 // len(piece))).correct_share == 0.0
    assert time.process_time() - started < 20.0      # a hundred times what is needed


@given(st.text(max_size=300).filter(lambda text: not any(word in text.casefold() for word in NAMED)))
def test_any_text_is_judged(text: str) -> None:
    for rows in ({"": TOLD}, {"House 1": TOLD, "House 2": TOLD}):
        assert measured({"rows": rows, "choices": CHOICES}, text).correct_share == 0.0
    assert measured({"groups": GROUPS}, text).correct_share == 0.0
