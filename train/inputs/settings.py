"""The options of a train stage, checked before anything loads."""

from importlib.util import find_spec

from train.inputs.groups import Group
from train.inputs.options import DTYPES, TrainOptions
from train.inputs.own_advantages import OPTION
from train.objective.loss_table import CORRECTIONS, DEFAULT_CORRECTION, LOSSES, OPTIONS, find_loss
from warehouse.stages.user_code import load_function
from warehouse.store.errors import StageError

ENGINE_RANK_LIMIT = 512     # the largest max_lora_rank that vLLM takes


def fill_in(settings: TrainOptions, groups: list[Group]) -> TrainOptions:
    """The settings completed from the rows: 'auto' is the engine's dtype, dr_grpo divides by max_tokens."""
    engine_dtype = groups[0].dtype
    if settings.dtype == "auto":
        if engine_dtype not in DTYPES:
            wrong = (f"were sampled in {engine_dtype}, which is not a dtype to train in" if engine_dtype
                     else "do not say in which dtype they were sampled")
            raise StageError(f"The rows {wrong}. Choose one with --dtype: {', '.join(DTYPES)}.")
        settings = settings.replace(dtype=engine_dtype)
    if find_loss(settings.loss).reduction == "fixed" and not settings.max_completion_length:
        limits = [group.max_tokens for group in groups]
        if None in limits:
            raise StageError(f"The loss {settings.loss} divides by the limit on completion tokens, which the "
                             "rows do not store. Give it with --max-completion-length.")
        settings = settings.replace(max_completion_length=max(limit for limit in limits if limit))
    return settings


def check_settings(settings: TrainOptions) -> None:
    """StageError for options that contradict each other; no file is needed to check them."""
    loss = find_loss(settings.loss)
    if loss.corrects_itself and settings.correction not in (None, "none"):
        raise StageError(f"The loss {settings.loss} uses no ratio, so there is none to correct: leave "
                         f"--correction {settings.correction} out.")
    unused = [name for name in OPTIONS if getattr(settings, name) is not None and name not in loss.takes]
    if unused:
        takers = ", ".join(other for other, each in LOSSES.items() if set(each.takes).issuperset(unused))
        names = ", ".join("--" + name.replace("_", "-") for name in unused)
        raise StageError(f"The loss {settings.loss} does not use {names}. Leave "
                         f"{'it' if len(unused) == 1 else 'them'} out"
                         + (f", or take one that does: {takers}." if takers else "."))
    for is_wrong, sentence in _contradictions(settings):
        if is_wrong:
            raise StageError(sentence)
    if settings.advantages:
        load_function(settings.advantages, OPTION)
    if settings.track:
        check_tracker(settings.track)


def check_tracker(name: str) -> None:
    if not (find_spec(name) or find_spec(f"{name}X")):      # tensorboardX will do
        raise StageError(f"--track {name} cannot be used: it is not installed. Run `pip install {name}`, or "
                         "leave --track out.")


def _contradictions(settings: TrainOptions) -> list[tuple[object, str]]:
    """Conditions that must not hold, with their error sentences; options without effect come first."""
    loss, purpose, correction = settings.loss, settings.purpose, correction_of(settings)[0]
    spec, low, high = find_loss(loss), settings.correction_low, settings.correction_high
    return [
        (settings.scale_rewards != "group" and spec.correct_only,
         f"The loss {loss} divides by no std: leave --scale-rewards out."),
        (settings.advantages and settings.teacher,
         "--advantages and --teacher both set the advantages. Leave one of them out."),
        (settings.scale_rewards != "group" and (settings.advantages or settings.teacher),
         "Advantages by --advantages or --teacher are not scaled: leave --scale-rewards out."),
        (CORRECTIONS[correction] == (None, None) and (low, high) != (None, None),
         f"The correction {correction} has no bounds: leave --correction-low, --correction-high out."),
        (settings.total_steps and settings.schedule == "constant",
         "--total-steps is where a schedule ends: choose --schedule linear or --schedule cosine."),
        (spec.correct_only and (settings.advantages or settings.teacher),
         f"The loss {loss} gives every right completion the same weight; --advantages and --teacher need a "
         "loss that weighs, for example --loss reinforce."),
        (purpose != "train" and not f"{purpose}-".startswith("distil-"),
         f"--purpose {purpose} is not possible: train on 'train', or on completions of an API model, "
         "'distil' or 'distil-<label>'."),
        (purpose != "train" and loss != "nll",
         f"Rows of purpose {purpose} have no logprobs, which the loss {loss} needs. Train on them with "
         "--loss nll."),
        (loss == "cispo" and settings.clip_high is not None and settings.clip_high < 1,
         f"--clip-high {settings.clip_high} would clip every token: of cispo it is the largest ratio, by "
         "default 5. Raise it above 1, or leave it out."),
        (spec.correct_only and settings.off_policy_threshold is not None,
         f"The loss {loss} has no negative advantage, which --off-policy-threshold asks for: leave it out."),
        (purpose != "train" and settings.veto,
         f"Rows of purpose {purpose} have no logprobs, which --veto needs: leave it out."),
        (settings.entropy_quantile < 1 and spec.level == "sequence",
         f"The loss {loss} has one ratio per completion, so --entropy-quantile would leave no token out: "
         "use a loss per token, for example dapo."),
        (settings.schedule != "constant" and not settings.total_steps,
         f"--schedule {settings.schedule} needs --total-steps, the optimizer step at which the learning rate "
         "reaches zero, counted over the whole run."),
        (not -2**63 <= settings.seed < 2**63,
         f"--seed {settings.seed} has more than 64 bits. Give a smaller one."),
        (settings.tokens_per_batch >= 2**31,
         f"--tokens-per-batch {settings.tokens_per_batch} is more than any forward takes. Lower it."),
        (settings.load_in_4bit and settings.full,
         "--load-4bit freezes the base, so it cannot be trained with --full. Leave one out."),
        (settings.lora_rank > ENGINE_RANK_LIMIT and not settings.full,
         f"--lora-rank {settings.lora_rank} is above {ENGINE_RANK_LIMIT}, the highest that vLLM serves: the "
         "next rollout could not load the adapter. Lower it."),
        (low is not None and high is not None and low >= high,
         f"--correction-low {low} must be below --correction-high {high}.")]


def needs_groups(settings: TrainOptions) -> bool:
    """Whether advantages compare the completions of a group."""
    return not (settings.advantages or settings.teacher or find_loss(settings.loss).correct_only)


def asks_base(settings: TrainOptions) -> bool:
    return bool(settings.kl_beta or settings.kl_monitor)


def correction_of(settings: TrainOptions) -> tuple[str, float | None, float | None]:
    usual = "none" if find_loss(settings.loss).corrects_itself else DEFAULT_CORRECTION
    name, given = settings.correction or usual, (settings.correction_low, settings.correction_high)
    return name, *(CORRECTIONS[name] if given == (None, None) else given)
