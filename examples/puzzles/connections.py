"""Connections: sixteen words, four groups of four; exactly one way to group them by the categories below."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

# Our own list: general knowledge in common words. A word in several categories is what makes a puzzle hard.
CATEGORIES = {
    "colours": "orange violet rose olive amber indigo scarlet ivory lime peach",
    "fruits": "orange apple cherry fig lime peach date plum olive kiwi",
    "planets and their gods": "mercury venus mars jupiter saturn neptune pluto uranus",
    "metals": "mercury iron copper tin lead silver gold nickel",
    "big cats": "lion tiger leopard jaguar cheetah panther puma lynx",
    "birds": "crane robin swift kiwi turkey duck eagle finch jay kite",
    "building machines": "crane bulldozer digger drill roller mixer forklift dumper",
    "countries": "turkey chad cuba jordan mali oman peru china",
    "given names of women": "rose violet olive amber ivy ruby pearl robin joy june",
    "given names of men": "chad jordan mark frank grant miles peter victor jay robin",
    "months and seasons": "march may june april august spring fall winter",
    "things that jump": "spring frog flea kangaroo cricket hare trampoline pogo",
    "games with a ball": "cricket tennis hockey golf rugby squash polo pool",
    "vegetables": "squash leek turnip beet carrot pea radish kale",
    "instruments": "horn harp drum organ viola triangle recorder lute",
    "parts of the body": "organ palm calf chest temple sole shin nail",
    "trees": "palm fig ash elm oak willow maple cedar",
    "young animals": "calf kid cub foal kitten lamb duckling fawn",
    "shapes": "triangle square circle oval star heart diamond crescent",
    "playing cards": "diamond heart spade club ace king queen jack",
    "tools": "spade drill hammer saw file plane rake chisel",
    "vehicles": "plane tank ferry tram van truck sled kayak",
    "gems": "ruby pearl amber diamond opal jade topaz garnet",
    "fish": "sole perch pike bass carp trout cod eel",
    "weather": "hail fog sleet storm frost drizzle breeze thunder",
    "kitchen things": "kettle mixer grater ladle sieve whisk pan squash",
}
WORDS = {name: frozenset(words.split()) for name, words in CATEGORIES.items()}
SIZE = 4
OVERLAPS = {"easy": (0, 0), "medium": (1, 3), "hard": (4, 16)}  # words that would fit another of the groups
QUESTION = """\
Make four groups of four out of these sixteen words, so that the words of each group have something in common:

{words}

End with one line per group: its four words, separated by commas."""


def groupings(words: frozenset[str], names: list[str]) -> Iterator[dict[str, frozenset[str]]]:
    """Every way to split words into the categories named, four words each."""
    if not names:
        yield {}
        return
    from itertools import combinations

    name, *rest = names
    fitting = sorted(words & WORDS[name])
    needed = [word for word in fitting if not any(word in WORDS[other] for other in rest)]
    for chosen in combinations(fitting, SIZE):
        if set(needed) <= set(chosen):
            for others in groupings(words - set(chosen), rest):
                yield {name: frozenset(chosen), **others}


def solutions(words: frozenset[str]) -> set[frozenset[frozenset[str]]]:
    """Every way to split the words into groups by any four of all categories."""
    from itertools import combinations

    able = [name for name, members in WORDS.items() if len(members & words) >= SIZE]
    return {
        frozenset(split.values())
        for names in combinations(able, SIZE)
        if words <= frozenset().union(*(WORDS[name] for name in names))
        for split in groupings(words, list(names))
    }


def connections(rng: Random, size: int = SIZE, level: str = "medium") -> dict[str, Any]:
    """One puzzle; `size` is always 4."""
    least, most = OVERLAPS[level]
    while True:
        groups: dict[str, list[str]] = {}
        for name in rng.sample(list(WORDS), SIZE):
            free = sorted(WORDS[name] - {word for group in groups.values() for word in group})
            groups[name] = rng.sample(free, SIZE)
        words = [word for group in groups.values() for word in group]
        overlaps = sum(word in WORDS[name] and word not in groups[name] for name in groups for word in words)
        if least <= overlaps <= most and len(solutions(frozenset(words))) == 1:
            break
    rng.shuffle(words)
    return {
        "question": QUESTION.format(words=", ".join(words)),
        "num_clues": overlaps,
        "payload": {"groups": [sorted(group) for group in groups.values()]},
        "solution": "\n".join(", ".join(group) for group in groups.values()),
    }
