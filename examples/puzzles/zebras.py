"""Zebra grids: houses in a row, each attribute once in every house; the whole grid is asked."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.puzzles.solver import Clause, Literal, World, needed_clues

ATTRIBUTES = {
    "name": ("Anna", "Ben", "Carla", "David", "Emma", "Finn"),
    "colour": ("red", "green", "blue", "yellow", "white", "orange"),
    "pet": ("dog", "cat", "parrot", "horse", "snail", "fox"),
    "drink": ("tea", "coffee", "milk", "juice", "water", "cocoa"),
    "sport": ("tennis", "chess", "rowing", "hockey", "fencing", "golf"),
    "instrument": ("piano", "violin", "flute", "drums", "guitar", "harp"),
}
LEVELS = {"easy": (4, 4, 1, 1, 0), "medium": (1, 3, 2, 2, 1), "hard": (0, 1, 2, 3, 3)}
INTRO = """\
There are {size} houses in a row, numbered 1 to {size} from left to right. In each lives one person. Each \
has another {attributes}:
{values}

{clues}

What belongs to each house? End with one line per house, in this form:
House 1: {form}"""
CLUES = 40


def phrase(attribute: str, value: str) -> str:
    """Who has a value, as a sentence says it."""
    verbs = {
        "name": f"{value}",
        "colour": f"the owner of the {value} house",
        "pet": f"the owner of the {value}",
        "drink": f"the person who drinks {value}",
        "sport": f"the person whose sport is {value}",
        "instrument": f"the person who plays the {value}",
    }
    return verbs[attribute]


def draw_clue(
    rng: Random,
    facts: dict[tuple[str, str], list[Literal]],
    houses: dict[tuple[str, str], int],
    weights: tuple[int, ...],
) -> tuple[str, list[Clause]]:
    """A true sentence about the houses, and what it says."""
    first, second = rng.sample(list(facts), 2)
    size, one, two = len(facts[first]), facts[first], facts[second]
    here, there = houses[first], houses[second]
    name, other = phrase(*first), phrase(*second)
    start = name[0].upper() + name[1:]
    sort = rng.choices(("place", "same", "next", "left", "apart"), weights)[0]
    if sort == "place":
        return f"{start} lives in house {here + 1}.", [[one[here]]]
    if first[0] == second[0] and sort in ("same", "apart"):
        return draw_clue(rng, facts, houses, weights)
    if sort == "same" and here == there:
        return f"{start} is {other}.", [
            clause
            for left, right in zip(one, two, strict=True)
            for clause in ([-left, right], [left, -right])
        ]
    if sort == "next" and abs(here - there) == 1:
        return (
            f"{start} lives next to {other}.",
            [
                [-one[house], *(two[beside] for beside in (house - 1, house + 1) if 0 <= beside < size)]
                for house in range(size)
            ],
        )
    if sort == "left" and here < there:
        return (
            f"{start} lives somewhere to the left of {other}.",
            [[-one[house], *two[house + 1 :]] for house in range(size)],
        )
    if sort == "apart" and here != there:
        return f"{start} is not {other}.", [[-left, -right] for left, right in zip(one, two, strict=True)]
    return draw_clue(rng, facts, houses, weights)


def zebra(rng: Random, size: int = 4, level: str = "medium") -> dict[str, Any]:
    """One puzzle with `size` houses and attributes."""
    names = list(ATTRIBUTES)[: max(2, min(size, len(ATTRIBUTES)))]
    values = {name: rng.sample(ATTRIBUTES[name], size) for name in names}  # by house
    world = World()
    facts = {(name, value): world.facts(size) for name in names for value in values[name]}
    houses = {(name, value): house for name in names for house, value in enumerate(values[name])}
    for numbers in facts.values():
        world.exactly_one(numbers)
    for name in names:
        for house in range(size):
            world.exactly_one([facts[name, value][house] for value in values[name]])
    clues: dict[str, list[Clause]] = {}
    needed = None
    while needed is None:
        clues |= dict(draw_clue(rng, facts, houses, LEVELS[level]) for _ in range(CLUES))
        needed = needed_clues(
            world, list(clues.values()), [numbers[houses[thing]] for thing, numbers in facts.items()], rng
        )
    texts = list(clues)
    shown = {name: sorted(values[name]) for name in names}
    rows = {f"House {house + 1}": {name: values[name][house] for name in names} for house in range(size)}
    question = INTRO.format(
        size=size,
        attributes=", ".join(names),
        form=", ".join(f"{name} .." for name in names),
        values="\n".join(f"- {name}: {', '.join(words)}" for name, words in shown.items()),
        clues="\n".join(f"- {texts[place]}" for place in needed),
    )
    solution = "\n".join(
        f"{house}: " + ", ".join(f"{name} {value}" for name, value in row.items())
        for house, row in rows.items()
    )
    return {
        "question": question,
        "num_clues": len(needed),
        "payload": {"rows": rows, "choices": shown},
        "solution": solution,
    }
