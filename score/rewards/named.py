"""Rewards by name: small functions from what was measured to named terms, whose sum is the reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from score.tasks.measures import Measures
from warehouse.store.errors import StageError

Parameters = Mapping[str, float]
RewardFunction = Callable[[Measures, Parameters], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Reward:
    """A registered reward: its function, the parameters it takes with their defaults, and its range."""

    function: RewardFunction
    defaults: dict[str, float] = field(default_factory=dict)
    full: Callable[[Parameters], float] = lambda parameters: 10.0
    floor: Callable[[Parameters], float] = lambda parameters: 0.0


REWARDS: dict[str, Reward] = {}


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


def arc_v0(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """-1 without code, 0 without valid outputs, else share of correct train grids + that of test grids."""
    if not measures.valid_code:
        return {"no_code": -1.0}
    if not measures.valid_outputs:
        return {}
    return {"train_grids": measures.train.correct_grids, "test_grids": measures.test.correct_grids}


def arc_v0_5(measures: Measures, parameters: Parameters) -> dict[str, float]:
    """arc-v1 with -1 for an answer without code."""
    return arc_v1(measures, parameters) if measures.valid_code else {"no_code": -1.0}


REWARDS["arc-v1"] = Reward(arc_v1)
REWARDS["arc-v2-no-pixel-score"] = Reward(arc_v2_no_pixel_score)
REWARDS["arc-exact-shaped"] = Reward(arc_exact_shaped, {"shaping": 0.1, "invalid": -0.1},
                                     full=lambda parameters: 1.0,
                                     floor=lambda parameters: parameters["invalid"])
REWARDS["arc-v0"] = Reward(arc_v0, full=lambda parameters: 2.0, floor=lambda parameters: -1.0)
REWARDS["arc-v0.5"] = Reward(arc_v0_5, floor=lambda parameters: -1.0)


def reward_named(name: str) -> Reward:
    """The registered reward; StageError listing them when there is none of that name."""
    if name not in REWARDS:
        raise StageError(f"No reward is called '{name}'. Known: {', '.join(REWARDS)}; "
                         "or name a function of your own as --reward-file FILE.py:NAME.")
    return REWARDS[name]
