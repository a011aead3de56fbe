"""Importance corrections on rho = pi_old / mu: names, usual bounds and weights, for `train` and SQL alike."""

from typing import NamedTuple


class Correction(NamedTuple):
    """Bounds of a correction unless given, None where there is none, and the weight of a token in words."""

    low: float | None
    high: float | None
    weight: str


CORRECTIONS = {
    "none": Correction(None, None, "1"),
    "token-truncate": Correction(None, 3.0, "rho_t, but no more than the bound"),
    "token-mask": Correction(0.5, 5.0, "rho_t inside the bounds, 0 outside"),
    "sequence-truncate": Correction(None, 3.0, "prod rho, but no more than the bound"),
    "sequence-mask": Correction(0.5, 5.0, "prod rho inside the bounds, 0 outside"),
    "bypass": Correction(None, None, "1; mu takes the place of pi_old in the ratio: the clip acts on pi/mu"),
}
# What drops whole completions beside a correction, by options of their own; off unless asked for.
DROPS = {
    "veto": Correction(1e-4, None, "0 for the completion if any rho_t is below the bound, else 1"),
    "off-policy": Correction(None, 0.5, "0 for the completion if its advantage is negative and "
                                        "mean(log mu - log pi_old) is above the bound, else 1"),
}
DEFAULT_CORRECTION = "token-truncate"


def bounds_of(name: str, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The bounds given; where none is given, those that the correction usually has."""
    if low is None and high is None:
        return CORRECTIONS[name].low, CORRECTIONS[name].high
    return low, high
