"""The runs of each study, in the order in which they are started: what matters most comes first."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.study.run import Plan, Stages

HERE = Path(__file__).parent
RATE, UPDATES = "4e-3", "4"
SEEDS = (0, 1, 2)


def trained(*more: str, rate: str = RATE, updates: str = UPDATES, rank: str = "8") -> tuple[str, ...]:
    """Options of `train`."""
    return ("--learning-rate", rate, "--updates-per-batch", updates, "--lora-rank", rank, *more)


WELL = Stages(train=trained())
# With the guards of `train` left on, these end before their first bad step, and say why.
UNGUARDED = ("--max-mismatch", "1e9", "--truncated-sampling", "uncorrected")
BENT = {"top_p": 0.95, "repetition_penalty": 1.05}
BROKEN = {
    "learning rate": Stages(train=trained(rate="3e-2")),
    "too many updates": Stages(train=trained(updates="32")),
    "no clip, stale rows": Stages(train=trained("--loss", "reinforce", rate="8e-3"), staleness=3),
    "another adapter served": Stages(train=trained(*UNGUARDED), served=0),
    "the adapter before served": Stages(train=trained(*UNGUARDED), served=-1),
    "bribed judge": Stages(score=("--reward-file", f"{HERE}/rewards.py:leaky"), train=trained()),
    "paid by length": Stages(score=("--reward-file", f"{HERE}/rewards.py:long"), train=trained()),
    "paid for repeating": Stages(score=("--reward-file", f"{HERE}/rewards.py:repeating"), train=trained()),
    "truncated sampling": Stages(BENT, train=trained("--loss", "reinforce", *UNGUARDED)),
    "two tokenizers": Stages(train=trained(*UNGUARDED), renumbered=4),
    "KL switched off, entropy": Stages(train=trained("--entropy-coef", "0.5")),
    "KL switched off, judge": Stages(score=("--reward-file", f"{HERE}/rewards.py:leaky"), train=trained()),
    "KL too strong": Stages(train=trained("--kl-beta", "5")),
    "entropy bonus": Stages(train=trained("--entropy-coef", "0.3")),
}
HELD = ("--kl-beta", "2")           # what holds a run until KL is switched off
FROM_THE_START = ("bribed judge", "paid by length", "paid for repeating", "truncated sampling")
HARDER = {
    "learning rate": Stages(train=trained(rate="1e-1")),
    "too many updates": Stages(train=trained(rate="8e-3", updates="32")),
    "no clip, stale rows": Stages(train=trained("--loss", "reinforce", rate="2e-2"), staleness=3),
    "entropy bonus": Stages(train=trained("--entropy-coef", "1")),
    "KL too strong": Stages(train=trained("--kl-beta", "50")),
}
HEALTHY = {
    "the example": WELL,
    "half the rate": Stages(train=trained(rate="2e-3")),
    "one update": Stages(train=trained(updates="1")),
    "groups of 16": Stages({"num_tasks": 16, "group_size": 16}, train=trained()),
    "gspo": Stages(train=trained("--loss", "gspo")),
    "cispo": Stages(train=trained("--loss", "cispo", rate="2e-3")),
    "dr_grpo": Stages(train=trained("--loss", "dr_grpo", rate="2e-3")),
    "KL": Stages(train=trained("--kl-beta", "0.05")),
    "rank 32": Stages(train=trained(rate="2e-3", rank="32")),
    "noised": WELL,
    "entropy held by KL": Stages(train=trained("--entropy-coef", "0.5", *HELD)),
    "judge held by KL": Stages(score=BROKEN["bribed judge"].score, train=trained(*HELD)),
}


def drill() -> Iterator[Plan]:
    """Every way to break a run after three good iterations (or from the start), and healthy runs."""
    for seed in SEEDS:
        for kinds, mark in ((BROKEN, ""), (HARDER, ", harder")):
            for kind, ill in kinds.items():
                well = replace(ill, train=(*ill.train, *HELD)) if "switched off" in kind else WELL
                if UNGUARDED[-1] in ill.train:               # nothing of them changes where the run breaks
                    well = replace(well, train=trained(*UNGUARDED))
                yield Plan("drill", kind + mark, seed, well, ill, onset=0 if kind in FROM_THE_START else 3)
        for kind, stages in HEALTHY.items():
            yield Plan("healthy", kind, seed, stages, model="model-noised" if kind == "noised" else "model")


LARGE = {"group_size": 32}                  # 1,024 completions of the 32 tasks
SLOW = ("KL switched off, entropy", "KL switched off, judge", "entropy bonus", "paid by length",
        "paid for repeating", "bribed judge", "KL too strong")
SOUND = ("entropy held by KL", "judge held by KL", "cispo", "half the rate", "one update", "dr_grpo",
         "rank 32", "noised")
SUDDEN = ("learning rate", "too many updates", "no clip, stale rows", "truncated sampling")


def drill_1024() -> Iterator[Plan]:
    """The drill with four times its completions: what drifts off slowly first, what dies at once last."""
    kept = [plan for plan in drill() if plan.kind in SOUND or plan.ill]
    order = [*SLOW, *SOUND, *(kind for kind in BROKEN if kind not in SLOW + SUDDEN), *SUDDEN]
    for plan in sorted(kept, key=lambda plan: order.index(plan.kind.removesuffix(", harder"))):
        well, ill = (stages and replace(stages, rollout=stages.rollout | LARGE)
                     for stages in (plan.well, plan.ill))
        yield replace(plan, study=f"{plan.study}-1024", well=well or Stages(), ill=ill)


def long() -> Iterator[Plan]:
    """The recipe of the runs that collapsed, and our defaults over five times its steps."""
    for seed in SEEDS:
        yield Plan("long", "ours", seed, WELL, iterations=40)
        yield Plan("long", "half the rate", seed, Stages(train=trained(rate="2e-3")), iterations=40)
    for seed in SEEDS:
        yield Plan("long", "seeds", seed, BROKEN["truncated sampling"], iterations=8)
        yield Plan("long", "unclipped", seed, Stages(train=trained("--loss", "reinforce")), iterations=8)
        yield Plan("long", "truncated", seed, Stages(BENT, train=trained(*UNGUARDED)), iterations=8)


KEEP = "--keep-if-nothing"       # a run that has died goes on, so that all are measured at equal samples
GENTLE = "1e-3"                  # at RATE the policy decays on rows of its own, too
SHORT = {"max_prompt_tokens": 250}                # the 32 tasks of the pool that every iteration visits
CLAIM = Plan("claims", "", 0, iterations=12, final=16)


def claims() -> Iterator[Plan]:
    """Staleness x correction x loss at equal samples, and the other claims.

    `prime` keeps a model of its own: it is among them where the variables that it reads are given.
    """
    for tried in (CLAIMED, LATER):
        for seed in SEEDS:
            for kind, (staleness, options) in tried.items():
                stages = Stages(SHORT, train=trained(KEEP, *options, rate=GENTLE), staleness=staleness)
                yield replace(CLAIM, kind=kind, seed=seed, well=stages)
    for seed in SEEDS:
        large = Stages(SHORT | {"group_size": 32}, train=trained(KEEP, rate=GENTLE, updates="16"))
        yield replace(CLAIM, kind="0: three large stages", seed=seed, well=large, iterations=3)


def crossed(losses: str, stalenesses: tuple[int, ...],
            corrections: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    """What is tried, by name: staleness, and options of `train`."""
    return {f"{staleness}: {loss} {correction}": (staleness, ("--loss", loss, "--correction", correction))
            for staleness in stalenesses for loss in losses.split() for correction in corrections.split()}


def by_default(losses: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Losses with the correction that each has by default."""
    own = {loss: ("--loss", f"{HERE.parents[1]}/examples/losses.py:{loss}", "--correction", "none")
           for loss in ("dppo", "topr", "vespo")}
    return {f"{staleness}: {loss}": (staleness, own.get(loss, ("--loss", loss)))
            for staleness in (3, 8, 0) for loss in losses.split()}


def own(name: str, file: str = "pass_at_k.py") -> tuple[str, ...]:
    """Advantages of the examples."""
    return ("--advantages", f"{HERE.parents[1]}/examples/advantages/{file}:{name}")


CLAIMED = (crossed("dapo gspo cispo", (0, 3, 8), "token-truncate") | by_default("dppo")
           | crossed("dapo gspo", (3, 8), "none bypass sequence-mask")
           | crossed("dapo", (1,), "token-truncate none"))
LATER = (crossed("cispo", (0, 3, 8), "none bypass") | by_default("reinforce nll topr vespo")
         | crossed("dapo gspo", (3, 8), "token-mask")
         | crossed("gspo", (1,), "token-truncate none") | crossed("dapo", (1,), "bypass sequence-mask")
         | {f"0: dapo, KL {beta}": (0, ("--kl-beta", beta)) for beta in ("0.02", "0.2")}
         | {f"0: dapo, {dtype}": (0, ("--dtype", dtype, "--max-mismatch", "1e9"))
            for dtype in ("bfloat16", "float16")}
         | {f"0: dapo, {name}": (0, own(name, f"{name}.py")) for name in ("surprise", "value_head")}
         | ({"0: dapo, prime": (0, own("prime", "prime.py"))} if "PRIME_FOLDER" in os.environ else {}))


MANY = {"num_tasks": 32, "group_size": 16}
RECIPES: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "full, 3e-4": (MANY, trained("--full", rate="3e-4")),
    "rate 5e-4": (MANY, trained(rate="5e-4")),
    "full, 1e-4": (MANY, trained("--full", rate="1e-4")),
    "rate 2e-3": (MANY, trained(rate="2e-3")),
    "pass@8": (MANY, trained(*own("pass_at_8"), rate="1e-3")),
    "64 tasks of 8": ({"num_tasks": 64, "group_size": 8}, trained(rate="1e-3")),
    "rate 1e-3, one update": (MANY, trained(rate="1e-3", updates="1")),
    "KL .05": (MANY, trained("--kl-beta", "0.05", rate="1e-3")),
    "KL .3": (MANY, trained("--kl-beta", "0.3", rate="2e-3")),
    "entropy .02": (MANY, trained("--entropy-coef", "0.02", rate="1e-3")),
    "pass@4": (MANY, trained(*own("pass_at_4"), rate="1e-3")),
    "rare": (MANY, trained(*own("rare"), rate="1e-3")),
    "no division by std": (MANY, trained("--scale-rewards", "none", rate="2e-3")),
    "nll": (MANY, trained("--loss", "nll", rate="1e-3")),
    "gspo": (MANY, trained("--loss", "gspo", rate="1e-3")),
    "rank 32": (MANY, trained(rate="5e-4", rank="32")),
    "rate 1e-3": (MANY, trained(rate="1e-3")),
}


def recipe() -> Iterator[Plan]:
    """Recipes on two thousand synthetic tasks, evaluated on two hundred others of the same kind."""
    for seed in SEEDS:
        yield recipe_plan("base", seed, Stages(), 0)
        for temperature in (0.8, 0.6, 0.4):
            cooler = recipe_plan(f"base, temperature {temperature}", seed, Stages(), 0)
            yield replace(cooler, drawn={"temperature": temperature})
        for kind, (rollout, options) in RECIPES.items():
            yield recipe_plan(kind, seed, Stages(rollout, train=(*options, KEEP)), 10)


def recipe_plan(kind: str, seed: int, stages: Stages, iterations: int) -> Plan:
    """A run that is evaluated at its end."""
    return Plan("recipe", kind, seed, stages, iterations=iterations, tasks=("synthetic:2000:11",),
                heldout=("synthetic:200:7",), evaluated={iterations: 16})


TURNS = {"first turns": Stages(MANY, train=trained(KEEP, rate="2e-3")),
         "both turns": Stages(MANY, train=trained(KEEP, rate="2e-3"), turns=2)}


def turns() -> Iterator[Plan]:
    """The noised starter on 16 first turns of a task, or on eight and eight answers to the best wrong one."""
    for seed in SEEDS:
        for kind, stages in TURNS.items():
            yield turns_plan(kind, seed, stages, 10)
        # As many tokens as ten iterations of both turns take, whose answers are shorter.
        yield turns_plan("first turns, equal tokens", seed, TURNS["first turns"], 8)
    yield turns_plan("base", 0, Stages(), 0)


def turns_plan(kind: str, seed: int, stages: Stages, iterations: int) -> Plan:
    """A run whose last policy is evaluated by 128 first turns, 64 of which are answered 64 times."""
    return Plan("turns", kind, seed, stages, iterations=iterations, model="model-noised",
                heldout=("synthetic:100:7",), evaluated={iterations: 128}, answered=64)


LOW = "2e-4"                     # a twentieth of RATE: nothing dies in its first 300 steps
HALF_POOL = SHORT | {"num_tasks": 16}                        # 128 completions per iteration
THEIR_SAMPLING = HALF_POOL | BENT
THEIRS = trained("--loss", "reinforce", *UNGUARDED, KEEP, rate=LOW)
REGIME = {
    "theirs": Stages(THEIR_SAMPLING, train=THEIRS),
    "defaults": Stages(HALF_POOL, train=trained(KEEP, rate=LOW)),
    "theirs, penalty 1.02": Stages(THEIR_SAMPLING | {"repetition_penalty": 1.02}, train=THEIRS),
    "theirs, no penalty": Stages(HALF_POOL | {"top_p": 0.95}, train=THEIRS),
    "theirs, KL 0.04": Stages(THEIR_SAMPLING, train=(*THEIRS, "--kl-beta", "0.04")),
    "theirs, sampled as it is": Stages(HALF_POOL, train=THEIRS),
    "rows 3 old, uncorrected, 8 updates": Stages(HALF_POOL, train=trained(
        "--correction", "none", KEEP, rate=LOW, updates="8"), staleness=3),
    "defaults, ten times the rate": Stages(HALF_POOL, train=trained(KEEP, rate="2e-3")),
    "theirs, a tenth of the rate": Stages(THEIR_SAMPLING, train=trained(
        "--loss", "reinforce", *UNGUARDED, KEEP, rate="2e-5")),
    "theirs, truncated masked": Stages(THEIR_SAMPLING, train=(*THEIRS, "--mask-truncated")),
    "theirs, gradient norm 0.05": Stages(THEIR_SAMPLING, train=(*THEIRS, "--max-grad-norm", "0.05")),
}


def regime() -> Iterator[Plan]:
    """The arms of the runs that collapsed after thousands of steps, at a rate at which none dies early."""
    for seed in SEEDS:
        for kind, stages in REGIME.items():
            yield Plan("regime", kind, seed, stages, iterations=100_000, is_endless=True,
                       heldout=("synthetic:200:7",), evaluated={0: 8})


def regime_2000() -> Iterator[Plan]:
    """The same on two thousand tasks, which are never all solved: rows always have gradients."""
    for plan in regime():
        yield replace(plan, study="regime-2000", tasks=("synthetic:2000:11",))


def smoke() -> Iterator[Plan]:
    """One iteration or two of everything, a few completions each: whether it runs at all."""
    little = {"num_tasks": 4, "group_size": 10}
    for study in (long, recipe, turns, drill, claims, regime):
        for plan in study():
            if plan.seed == 0:
                well, *ill = (replace(stages, rollout=stages.rollout | little)
                              for stages in (plan.well, plan.ill) if stages)
                yield replace(plan, study="smoke", kind=f"{plan.study}: {plan.kind}", well=well,
                              ill=ill[0] if ill else None,
                              iterations=min(plan.iterations, 2), onset=min(plan.onset, 1),
                              final=plan.final and 2, is_endless=False,
                              evaluated={min(policy, 2): 8 for policy in plan.evaluated},
                              answered=plan.answered and 8)


STUDIES: dict[str, Callable[[], Iterator[Plan]]] = {
    study.__name__.replace("_", "-"): study
    for study in (long, drill, drill_1024, claims, recipe, turns, regime, regime_2000, smoke)}
