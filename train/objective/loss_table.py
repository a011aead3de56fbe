"""Losses and corrections without their formulas and without torch, so that options are checked early."""

from functools import cache
from typing import NamedTuple

from warehouse.stages.user_code import UserFunction, load_function
from warehouse.store.errors import StageError


class Loss(NamedTuple):
    """Reduction, ratio level, clip defaults, whether a weight may be added, which rows, its own options."""

    reduction: str                      # completion | token | fixed: see losses.loss_scales
    level: str = "token"                # token | sequence: level of the ratio
    clip_low: float = 0.2
    clip_high: float = 0.2
    corrects_itself: bool = False       # it uses no ratio: no weight may be added
    correct_only: bool = False          # right completions with advantage 1, the others left out
    takes: tuple[str, ...] = ()         # of OPTIONS
    own: UserFunction | None = None     # the user's own formula


CLIPPED = ("clip_low", "clip_high", "delta")
OPTIONS = (*CLIPPED, "max_completion_length")                   # not every loss takes these
REDUCTIONS = ("completion", "token", "fixed")
LOSSES = {
    "dapo": Loss("token", clip_high=0.28, takes=CLIPPED),                   # arXiv 2503.14476
    "grpo": Loss("completion", takes=CLIPPED),                              # arXiv 2402.03300
    "dr_grpo": Loss("fixed", takes=(*CLIPPED, "max_completion_length")),    # arXiv 2503.20783
    "gspo": Loss("completion", "sequence", 3e-4, 4e-4, takes=CLIPPED),      # arXiv 2507.18071
    "cispo": Loss("token", clip_high=5.0, takes=("clip_high",)),            # arXiv 2506.13585; absolute
    "reinforce": Loss("token", corrects_itself=True),
    "nll": Loss("token", corrects_itself=True, correct_only=True),
}
# Lower and upper bound of each importance correction on rho = pi_old / mu, unless given.
CORRECTIONS: dict[str, tuple[float | None, float | None]] = {
    "none": (None, None), "token-truncate": (None, 3.0), "token-mask": (0.5, 5.0),
    "sequence-truncate": (None, 3.0), "sequence-mask": (0.5, 5.0), "bypass": (None, None)}
DEFAULT_CORRECTION = "token-truncate"


@cache
def find_loss(name: str) -> Loss:
    """The loss of this name, or the user's function FILE.py:NAME; StageError if there is none.

    The function's attribute `reduction` says how tokens add up; the default is 'token'.
    """
    if ".py:" not in name:
        if name not in LOSSES:
            ours = "That of TRL is dapo with clip-high = 0.2. " if name == "bnpo" else ""
            raise StageError(f"There is no loss '{name}'. {ours}Known: {', '.join(LOSSES)}, or a function of "
                             "your own, FILE.py:NAME; examples/losses.py has more.")
        return LOSSES[name]
    own = load_function(name, "--loss")
    reduction = getattr(own.function, "reduction", "token")
    if reduction not in REDUCTIONS:
        raise StageError(f"--loss {name} has reduction = {reduction!r}. Known: {', '.join(REDUCTIONS)}.")
    takes = ("max_completion_length",) if reduction == "fixed" else ()
    return Loss(reduction, takes=takes, own=own)
