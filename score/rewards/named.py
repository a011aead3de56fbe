"""Rewards by name: small functions from measurements to named terms. Their sum is the reward."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from score.tasks.measures import Measures
from warehouse.store.errors import StageError

SHAPING, INVALID = 0.1, -0.1         # of arc-exact-shaped


@dataclass(frozen=True, slots=True)
class Reward:
    """A registered reward: its function, and what it gives for all that is right and for no program."""

    function: Callable[[Measures], dict[str, float]]
    full: float = 1.0
    floor: float = 0.0
    of_grids: bool = False      # it means something for grids alone


def arc_v1(measures: Measures) -> dict[str, float]:
    """0 without valid outputs, else 1 + 8 * correct grids + pixel score, over all train and test grids."""
    if not measures.valid_outputs:
        return {}
    return {"valid": 1.0, "correct_grids": 8 * measures.correct_share, "pixel_score": measures.pixel_score}


def arc_v2_no_pixel_score(measures: Measures) -> dict[str, float]:
    """0 without valid outputs, else 1 + 9 * correct grids, over all train and test grids."""
    return {"valid": 1.0, "correct_grids": 9 * measures.correct_share} if measures.valid_outputs else {}


def arc_exact_shaped(measures: Measures) -> dict[str, float]:
    """1 when everything is exact, else 0.1 times the share that is; -0.1 without valid outputs."""
    if not measures.valid_outputs:
        return {"invalid": INVALID}
    return {"exact": 1.0} if measures.correct else {"shaping": SHAPING * measures.correct_share}


def exact(measures: Measures) -> dict[str, float]:
    """1 when everything is right, else 0."""
    return {"exact": 1.0} if measures.correct else {}


def tests_share(measures: Measures) -> dict[str, float]:
    """The share of tests (or calls, cases, grids) that are right."""
    return {"tests": measures.correct_share}


def graded(measures: Measures) -> dict[str, float]:
    """What the task's own grader gives, term by term, of any size; of other tasks the share that is right."""
    return {"graded": measures.correct_share} if measures.rewards is None else measures.rewards


REWARDS = {"arc-v1": Reward(arc_v1, full=10.0, of_grids=True),
           "arc-v2-no-pixel-score": Reward(arc_v2_no_pixel_score, full=10.0, of_grids=True),
           "arc-exact-shaped": Reward(arc_exact_shaped, floor=INVALID, of_grids=True),
           "exact": Reward(exact), "tests-share": Reward(tests_share), "graded": Reward(graded)}
# What tasks get where no reward is named, `exact` where their kind is not here: a program that prints nothing
# has valid outputs, and earns nothing. Part of the identity of every by-kind scorer.
BY_KIND = "by-kind"
DEFAULTS = {"grid": "arc-v1", "function": "exact", "stdio": "exact", "answer": "exact", "math": "exact",
            "graded": "graded"}


def default_reward(kinds: Iterable[str]) -> str:
    """The reward of tasks of these kinds where none is named: the same for all of them, or by-kind."""
    names = {DEFAULTS.get(kind, "exact") for kind in kinds}
    return names.pop() if len(names) == 1 else BY_KIND


def check_kinds(name: str | None, kinds: Collection[str]) -> None:
    """StageError for a named reward of grids in a run whose tasks, of these kinds, have none."""
    if name and REWARDS[name].of_grids and "grid" not in kinds:
        raise StageError(f"'{name}' is a reward of grids, and this run has none: its tasks are of kind "
                         f"{', '.join(sorted(kinds))}. Take `reward` out of [score] in config.toml, and "
                         "--reward out of the command, or name exact.")


def reward_of(name: str, kind: str) -> Reward:
    """The registered reward of this name for a kind of task; that of by-kind is the kind's default."""
    return REWARDS[DEFAULTS.get(kind, "exact") if name == BY_KIND else name]
