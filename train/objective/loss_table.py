"""What distinguishes the losses beside their formulas; without torch, so that options are checked at once."""

from typing import NamedTuple


class Loss(NamedTuple):
    """Reduction, ratio level, clip defaults, whether a weight may be added, which rows, its own options."""

    reduction: str                      # completion | token | fixed | sum: see losses.loss_scales
    level: str = "token"                # token | sequence: what the ratio is taken over
    clip_low: float = 0.2
    clip_high: float = 0.2
    corrects_itself: bool = False       # the ratio is taken against mu, or never: no weight may be added
    correct_only: bool = False          # right completions with advantage 1, the others left out
    takes: tuple[str, ...] = ()         # of OPTIONS


CLIPPED = ("clip_low", "clip_high", "delta")
OPTIONS = (*CLIPPED, "max_completion_length", "oapl_beta")      # which not every loss takes
LOSSES = {
    "dapo": Loss("token", clip_high=0.28, takes=CLIPPED),                   # arXiv 2503.14476
    "grpo": Loss("completion", takes=CLIPPED),                              # arXiv 2402.03300
    "dr_grpo": Loss("fixed", takes=(*CLIPPED, "max_completion_length")),    # arXiv 2503.20783
    "gspo": Loss("completion", "sequence", 3e-4, 4e-4, takes=CLIPPED),      # arXiv 2507.18071
    "cispo": Loss("token", clip_high=5.0, takes=("clip_high",)),            # arXiv 2506.13585; absolute
    "sapo": Loss("completion"),                             # arXiv 2511.20347
    "vespo": Loss("token", corrects_itself=True),
    "dppo": Loss("token", corrects_itself=True),
    "topr": Loss("token", corrects_itself=True),            # arXiv 2503.14286
    "m2po": Loss("token", corrects_itself=True),            # arXiv 2510.01161
    "reinforce": Loss("token", corrects_itself=True),
    "nll": Loss("token", corrects_itself=True, correct_only=True),
    "oapl": Loss("sum", corrects_itself=True, takes=("oapl_beta",)),        # arXiv 2602.19362
}
