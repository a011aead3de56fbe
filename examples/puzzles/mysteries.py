"""Mysteries: who killed the host, where, when and with what, from clues about who was where at which hour."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from examples.puzzles.solver import Clause, Literal, World, needed_clues

SUSPECTS = (
    "Ada Finch",
    "Bruno Hale",
    "Clara Voss",
    "Dmitri Lorne",
    "Edith Marsh",
    "Felix Orr",
    "Greta Pell",
    "Hugo Stark",
    "Iris Thorne",
    "Jonas Quill",
)
ROOMS = (
    "attic",
    "ballroom",
    "cellar",
    "conservatory",
    "gallery",
    "kitchen",
    "library",
    "observatory",
    "pantry",
    "study",
)
WEAPONS = (
    "candelabra",
    "dagger",
    "hammer",
    "poison",
    "pistol",
    "razor",
    "rope",
    "statuette",
    "scythe",
    "wrench",
)
HOURS = tuple(f"{hour} o'clock" for hour in ("six", "seven", "eight", "nine", "ten", "eleven"))
HOST = "Lord Ashcombe"
# How often each sort of clue is drawn: plain ones say a fact, others how facts depend on each other.
LEVELS = {"easy": (6, 1, 1, 1, 3), "medium": (2, 2, 3, 2, 2), "hard": (1, 3, 5, 3, 1)}
CLUES_PER_FACT = 0.6
INTRO = """\
{host} was killed last night in a house with {num_rooms} rooms: {rooms}, in that order around a \
courtyard, so that each leads to the next, and the last to the first. Between one hour and the next \
everybody stayed where they were, or went to a room beside it. The suspects are {suspects}. The \
hours are {hours}. Each of these objects lay in one room the whole night: {weapons}; a room may have \
held several of them, or none.
At the hour of the murder the murderer and {host} were alone in the room of the murder, where the weapon lay.

{clues}

Who was the murderer, in which room, at which hour, and with which object? End with these four lines:
who: ..
where: ..
when: ..
with what: .."""


class Mystery(NamedTuple):
    """A night: names, the room of everybody at each hour, and of each object; the host is the last person."""

    people: list[str]
    rooms: list[str]
    hours: list[str]
    weapons: list[str]
    place: list[list[int]]  # of a person, by hour
    lies: list[int]  # the room of each object
    murder: tuple[int, int, int, int]  # person, room, hour, object


class Facts(NamedTuple):
    """The number of each fact."""

    at: list[list[list[Literal]]]  # person, hour, room
    lies: list[list[Literal]]  # object, room
    who: list[Literal]
    where: list[Literal]
    when: list[Literal]
    what: list[Literal]


def draw_mystery(rng: Random, size: int) -> Mystery:
    """A night in which somebody was alone with the host where an object lay."""
    names = [
        rng.sample(SUSPECTS, size),
        sorted(rng.sample(ROOMS, size)),
        list(HOURS[: min(size, len(HOURS))]),
        rng.sample(WEAPONS, size),
    ]
    while True:
        place = []
        for _ in range(size + 1):
            rooms = [rng.randrange(size)]
            for _ in names[2][1:]:
                rooms.append((rooms[-1] + rng.choice((-1, 0, 1))) % size)
            place.append(rooms)
        lies = [rng.randrange(size) for _ in range(size)]
        murders = [
            (person, place[person][hour], hour, weapon)
            for person in range(size)
            for hour in range(len(names[2]))
            for weapon in range(size)
            if [other for other in range(size + 1) if place[other][hour] == place[person][hour]]
            == [person, size]
            and lies[weapon] == place[person][hour]
        ]
        if murders:
            return Mystery([*names[0], HOST], names[1], names[2], names[3], place, lies, rng.choice(murders))


def describe(night: Mystery) -> tuple[World, Facts]:
    """What holds in every such night."""
    world, size, hours = World(), len(night.rooms), len(night.hours)
    facts = Facts(
        [[world.facts(size) for _ in range(hours)] for _ in night.people],
        [world.facts(size) for _ in night.weapons],
        world.facts(size),
        world.facts(size),
        world.facts(hours),
        world.facts(size),
    )
    for one in (*(rooms for person in facts.at for rooms in person), *facts.lies, *facts[2:]):
        world.exactly_one(one)
    for rooms in facts.at:
        for before, after in pairwise(rooms):
            world.rules += [
                [-after[room], *{before[(room + step) % size] for step in (-1, 0, 1)}] for room in range(size)
            ]
    for room, where in enumerate(facts.where):
        world.rules += [
            [-where, -what, lies[room]] for what, lies in zip(facts.what, facts.lies, strict=True)
        ]
        for hour, when in enumerate(facts.when):
            world.rules.append([-where, -when, facts.at[-1][hour][room]])
            for person, who in enumerate(facts.who):
                world.rules.append([-who, -where, -when, facts.at[person][hour][room]])
                world.rules += [
                    [-who, -where, -when, -facts.at[other][hour][room]]
                    for other in range(size)
                    if other != person
                ]
    return world, facts


def draw_clue(
    rng: Random, night: Mystery, facts: Facts, weights: tuple[int, ...]
) -> tuple[str, list[Clause]]:
    """A true sentence about the night, and what it says; nobody saw the host after the murder."""
    hour = rng.randrange(len(night.hours))
    seen = len(night.people) - (hour > night.murder[2])
    person = rng.randrange(seen)
    name, at, room = night.people[person], night.hours[hour], night.place[person][hour]
    match rng.choices(("plain", "not", "together", "murder", "object"), weights)[0]:
        case "plain":
            return f"At {at} {name} was in the {night.rooms[room]}.", [[facts.at[person][hour][room]]]
        case "not":
            other = rng.choice([other for other in range(len(night.rooms)) if other != room])
            return (
                f"At {at} {name} was not in the {night.rooms[other]}.",
                [[-facts.at[person][hour][other]]],
            )
        case "together":
            second = rng.choice([other for other in range(seen) if other != person])
            pairs = list(zip(facts.at[person][hour], facts.at[second][hour], strict=True))
            if night.place[second][hour] == room:
                return (
                    f"At {at} {name} and {night.people[second]} were in the same room.",
                    [clause for one, two in pairs for clause in ([-one, two], [one, -two])],
                )
            return (
                f"At {at} {name} and {night.people[second]} were in different rooms.",
                [[-one, -two] for one, two in pairs],
            )
        case "murder":
            return draw_murder_clue(rng, night, facts, hour)
        case _:
            thing = rng.randrange(len(night.weapons))
            other = rng.randrange(len(night.rooms))
            if other != night.lies[thing]:
                return (
                    f"The {night.weapons[thing]} was not in the {night.rooms[other]}.",
                    [[-facts.lies[thing][other]]],
                )
            return f"The {night.weapons[thing]} lay in the {night.rooms[other]}.", [
                [facts.lies[thing][other]]
            ]


def draw_murder_clue(rng: Random, night: Mystery, facts: Facts, hour: int) -> tuple[str, list[Clause]]:
    """What is known of the murderer, the hour or the object without naming it."""
    killer, _, when, weapon = night.murder
    match rng.randrange(3):
        case 0:
            room = night.place[killer][hour]
            return (
                f"At {night.hours[hour]} the murderer was in the {night.rooms[room]}.",
                [[-who, rooms[hour][room]] for who, rooms in zip(facts.who, facts.at, strict=False)],
            )
        case 1:
            if hour == when:
                return (
                    f"The murder did not happen before {night.hours[hour]}.",
                    [[-fact] for fact in facts.when[:hour]],
                )
            word, ruled_out = (
                ("before", facts.when[hour:]) if when < hour else ("after", facts.when[: hour + 1])
            )
            return f"The murder happened {word} {night.hours[hour]}.", [[-fact] for fact in ruled_out]
        case _:
            other = rng.choice([other for other in range(len(night.weapons)) if other != weapon])
            return f"The {night.weapons[other]} was not the weapon.", [[-facts.what[other]]]


def mystery(rng: Random, size: int = 4, level: str = "medium") -> dict[str, Any]:
    """One puzzle: what is asked, the payload for its grader, and the answer in words."""
    night = draw_mystery(rng, size)
    world, facts = describe(night)
    answer = [numbers[chosen] for numbers, chosen in zip(facts[2:], night.murder, strict=True)]
    clues: dict[str, list[Clause]] = {}
    needed = None
    while needed is None:
        for _ in range(round(CLUES_PER_FACT * world.num_facts)):
            text, clauses = draw_clue(rng, night, facts, LEVELS[level])
            clues[text] = clauses
        needed = needed_clues(world, list(clues.values()), answer, rng)
    texts = list(clues)
    names = (night.people[:-1], night.rooms, night.hours, night.weapons)
    told = {
        label: every[chosen]
        for label, every, chosen in zip(
            ("who", "where", "when", "with what"), names, night.murder, strict=True
        )
    }
    question = INTRO.format(
        host=HOST,
        num_rooms=size,
        rooms=listed(night.rooms),
        suspects=listed(night.people[:-1]),
        hours=listed(night.hours),
        weapons=listed(night.weapons),
        clues="\n".join(f"- {texts[place]}" for place in needed),
    )
    return {
        "question": question,
        "num_clues": len(needed),
        "payload": {"rows": {"": told}, "choices": dict(zip(told, names, strict=True))},
        "solution": "\n".join(f"{label}: {value}" for label, value in told.items()),
    }


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names[:-1]) + f" and {names[-1]}"
