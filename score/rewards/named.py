"""Rewards by name: small functions from measurements to named terms. Their sum is the reward."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from score.tasks.measures import Measures
from warehouse.store.errors import StageError

Parameters = Mapping[str, float]
RewardFunction = Callable[[Measures, Parameters], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Reward:
    """A registered reward: its function, its parameters with their defaults, and its range."""

    function: RewardFunction
    defaults: dict[str, float] = field(default_factory=dict)
    full: float = 10.0
    floor: Callable[[Parameters], float] = lambda parameters: 0.0


def arc_v1(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """0 without valid outputs, else 1 + 8 * correct grids + pixel score, over all train and test grids."""
    if not measures.valid_outputs:
        return {}
    return {"valid": 1.0, "correct_grids": 8 * measures.correct_share, "pixel_score": measures.pixel_score}


def arc_v2_no_pixel_score(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """0 without valid outputs, else 1 + 9 * correct grids, over all train and test grids."""
    if not measures.valid_outputs:
        return {}
    return {"valid": 1.0, "correct_grids": 9 * measures.correct_share}


def arc_exact_shaped(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """1 when everything is exact, else `shaping` times the share that is; `invalid` without valid outputs."""
    if not measures.valid_outputs:
        return {"invalid": parameters["invalid"]}
    if measures.correct:
        return {"exact": 1.0}
    return {"shaping": parameters["shaping"] * measures.correct_share}


def exact(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """1 when everything is right, else 0."""
    return {"exact": 1.0} if measures.correct else {}


def tests_share(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """The share of tests (or calls, cases, grids) that are right."""
    return {"tests": measures.correct_share}


def graded(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """What the task's own grader gives, term by term, of any size; of other tasks the share that is right."""
    return {"graded": measures.correct_share} if measures.rewards is None else measures.rewards


REWARDS: dict[str, Reward] = {
    "arc-v1": Reward(arc_v1),
    "arc-v2-no-pixel-score": Reward(arc_v2_no_pixel_score),
    "arc-exact-shaped": Reward(arc_exact_shaped, {"shaping": 0.1, "invalid": -0.1}, 1.0,
                               floor=lambda parameters: parameters["invalid"]),
    "exact": Reward(exact, full=1.0),
    "tests-share": Reward(tests_share, full=1.0),
    "graded": Reward(graded, full=1.0)}
# What tasks get where no reward is named, `exact` where their kind is not here: a program that prints nothing
# has valid outputs, and earns nothing. Part of the identity of every by-kind scorer.
BY_KIND = "by-kind"
DEFAULTS = {"grid": "arc-v1", "function": "exact", "stdio": "exact", "answer": "exact", "math": "exact",
            "puzzle": "tests-share", "reasoning-gym": "tests-share", "verifiers": "graded"}


def default_reward(kinds: Iterable[str]) -> str:
    """The reward of tasks of these kinds where none is named: the same for all of them, or by-kind."""
    names = {DEFAULTS.get(kind, "exact") for kind in kinds}
    return names.pop() if len(names) == 1 else BY_KIND


def rewards_named(name: str) -> dict[str, Reward]:
    """The registered reward of each kind of task; StageError listing the names where there is none."""
    names = DEFAULTS if name == BY_KIND else dict.fromkeys(DEFAULTS, name)
    if not REWARDS.keys() >= set(names.values()):
        raise StageError(f"No reward is called '{name}'. Known: {', '.join(REWARDS)}; "
                         "or name a function of your own as --reward-file FILE.py:NAME.")
    others = REWARDS["exact" if name == BY_KIND else name]      # of kinds that DEFAULTS leaves out
    return defaultdict(lambda: others, {kind: REWARDS[reward] for kind, reward in names.items()})
