"""Options of a rollout: what they are, which combinations are refused, which are fixed once it started."""

import json
import math
import re
from dataclasses import asdict, dataclass, fields
from types import SimpleNamespace
from typing import Any, Self

from rollout.engines.engine import MOST_TOP_K, Sampling
from rollout.engines.environment import engine_version, on_cpu
from rollout.prompts.feedback import find_feedback
from rollout.prompts.formats import find_format
from warehouse.stages.shard import Shard
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError
from warehouse.store.names import check_name, turn_of
from warehouse.store.run_folder import Warehouse

# Options that do not change which rows come out, or that are stored under another name.
NOT_SETTINGS = ("run", "iteration", "evaluate", "label", "policy_version", "sampling", "max_num_seqs",
                "gpu_memory_utilization", "tensor_parallel_size", "endpoint", "allow_truncated_sampling",
                "shard", "spill_seconds", "time_limit", "grace", "accept_change", "max_turns",
                "distil", "api_key_variable", "cache")
FIRST_TURN = ("prompts_per_task", "prompt_format", "format_options", "augmentation", "shuffle_pairs")
NEXT_TURN = ("turn", "parents_sql", "parents_per_task", "feedback")
TRAINED_RANK = 16  # of `train`, where config.toml says none
FORMS = re.compile(r"(\d*\.?\d+)(groups|s)?")  # of --carry-over
# Settings that say where and by what the rows were sampled; a rollout may go on although they changed.
MAY_CHANGE = ("engine", "serve", "dtype", "quantization", "policy_sha256", "tokenizer_sha256", "tasks_sha256",
              "carry_over")


@dataclass(frozen=True)
class CarryOver:
    """When a rollout ends: at a share of its completions, a number of whole groups, or after seconds."""

    amount: float
    unit: str       # '', 'groups' or 's'

    @classmethod
    def parse(cls, text: str) -> Self:
        """From '0.9', '24groups' or '600s'; StageError if it is none of these."""
        form = FORMS.fullmatch(text)
        amount, unit = (float(form[1]), form[2] or "") if form else (0.0, "")
        if amount <= 0 or (not unit and amount > 1) or (unit == "groups" and amount % 1):
            raise StageError(f"--carry-over {text} is not possible. Write a share of the completions above "
                             "0 and up to 1 (0.9), a number of groups (24groups) or seconds (600s).")
        return cls(amount, unit)


class RolloutOptions(SimpleNamespace):
    """Every option of `rollout` by its name; those of sampling are together in `sampling`.

    The command line is where each is declared; what is set here is never changed, but copied by `replace`.
    """

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """The options that the command line says; StageError where it says what is no share of the parts."""
        chosen = values | {"stop_when_code_closes": values["stop_when_code_closes"] or None}
        sampling = Sampling(**{field.name: chosen.pop(field.name) for field in fields(Sampling)})
        return cls(**chosen | {
            "sampling": sampling, "shard": Shard.parse(chosen["shard"]),
            "endpoint": tuple(url.rstrip("/") for url in (chosen["endpoint"] or "").split(",") if url),
            "accept_change": chosen["accept_change"] + chosen.pop("accept_drift")})

    def replace(self, **changes: Any) -> Self:
        """The same with other values."""
        assert changes.keys() <= vars(self).keys(), f"no such option: {changes.keys() - vars(self).keys()}"
        return type(self)(**vars(self) | changes)


def check_options(options: RolloutOptions) -> None:
    """Refuse values that the engine would refuse after minutes, or that would be stored but do nothing."""
    sampling = options.sampling
    temperature = sampling.temperature
    for name, legal, wanted in [
        ("temperature", temperature == 0 or 0.01 <= temperature <= 2, "0 or from 0.01 to 2"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("presence_penalty", abs(sampling.presence_penalty) <= 2, "from -2 to 2"),
        ("frequency_penalty", abs(sampling.frequency_penalty) <= 2, "from -2 to 2"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "above 0"),
    ]:
        if not legal:
            raise StageError(f"--{name.replace('_', '-')} {getattr(sampling, name):g} is not possible: "
                             f"it must be {wanted}.")
    for name in options.accept_change:
        if name not in MAY_CHANGE:
            raise StageError(f"--accept-change {name} is not possible: rows of one rollout share it. "
                             f"Only {', '.join(MAY_CHANGE)} may change.")
    if options.label and not (options.evaluate or options.distil):
        raise StageError("--label names an evaluation. Give it together with --eval.")
    if options.label:
        check_name("--label", options.label)
        if turn_of(f"eval-{options.label}") > 1:
            raise StageError(f"--label {options.label} would name the turns of another evaluation. Choose "
                             "another label.")
    if options.turn > options.max_turns:
        raise StageError(f"--turn {options.turn} is beyond --max-turns {options.max_turns}. Raise the limit "
                         "if conversations may become that long.")
    if options.turn == 1 and (options.parents_sql is not None or options.parents_per_task):
        raise StageError("--from and --parents-per-task pick what a later turn answers. Give them together "
                         "with --turn 2.")
    for url in options.endpoint:
        if not url.startswith(("http://", "https://")):
            raise StageError(f"--endpoint {url} is not the address of a server. Write http://HOST:PORT, "
                             "without a path behind it.")
    if len(set(options.endpoint)) < len(options.endpoint):
        twice = max(options.endpoint, key=options.endpoint.count)
        raise StageError(f"--endpoint names {twice} twice. Name every server once.")
    if options.tensor_parallel_size > 1 and not options.endpoint and on_cpu():
        raise StageError(f"--tensor-parallel-size {options.tensor_parallel_size} spans GPUs, and the vLLM "
                         "that is installed is the build for CPUs. Leave it out.")
    _check_foreign(options)
    _check_honest(options)
    _check_carried(options)


def _check_foreign(options: RolloutOptions) -> None:
    """Refuse what cannot be asked of a model behind an API, and its options without such a model."""
    if not options.model:
        for name, given in (("distil", options.distil), ("cache", options.cache)):
            if given:
                raise StageError(f"--{name} is about a model behind an API. Name that with --model and "
                                 "--endpoint.")
        return
    if options.cache and re.match("[a-z0-9]+:/", str(options.cache)):       # a path has lost the second slash
        raise StageError(f"--cache {options.cache} would be a folder of that name here: answers are kept on "
                         "a disk. Name a folder, for example one that all machines see.")
    if len(options.endpoint) != 1:
        raise StageError(f"--model {options.model} is asked at one address. Give it with --endpoint.")
    if options.evaluate == options.distil:
        raise StageError(f"The answers of --model {options.model} come without logprobs, so they cannot be "
                         "rows of purpose 'train': say --eval to evaluate it, or --distil to gather its "
                         "answers to the training tasks for `train --loss nll`.")
    if options.turn > 1:
        raise StageError(f"--turn {options.turn} goes on from tokens, which --model {options.model} cannot "
                         "be given. Leave one of them out.")
    if options.sampling.stop_loops or options.sampling.stop_when_code_closes:
        raise StageError("--stop-loops and --stop-when-code-closes need an engine of the run's own. Leave "
                         "them out, or --model.")


def _check_honest(options: RolloutOptions) -> None:
    """Refuse training rollouts that do not sample from the policy itself, unless allowed by name."""
    departures = options.sampling.departures()
    if options.sampling.num_likely():
        departures = [name for name in departures if name.endswith("penalty")]
    if departures and not (options.evaluate or options.distil) and not options.allow_truncated_sampling:
        name = departures[0].replace("_", "-")
        way_out = "Leave it out" if name.endswith("penalty") else (
            f"Leave it out, give --top-k {MOST_TOP_K} or less with it (what was left to draw from is then "
            "stored, and trained on)")
        raise StageError(
            f"--{name} makes the sampled distribution differ from the policy's, which biases every "
            f"importance ratio in training. {way_out}, or give --allow-truncated-sampling (train will "
            "refuse such rows unless told how to treat them).")


def _check_carried(options: RolloutOptions) -> None:
    """Refuse to carry over what nothing goes on with, or what would be sampled otherwise from there on."""
    if options.carry_over is None:
        return
    CarryOver.parse(options.carry_over)
    if options.evaluate or options.distil or options.turn > 1:
        raise StageError("--carry-over is of first turns to train on: no later iteration would go on with "
                         "evaluations, turns or another model's answers. Leave it out.")
    if options.sampling.num_likely():
        raise StageError("--top-k is trained over what it left to draw from, which is not carried over. "
                         "Leave it out, or --carry-over.")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(options.sampling, name):
            raise StageError(f"--{name.replace('_', '-')} counts the tokens of a completion, and the engine "
                             "does not know those of an earlier iteration. Leave it out, or --carry-over.")


def prompt_limit(options: RolloutOptions, model_length: int) -> int:
    """Longest prompt, in tokens, that leaves room for the completion; StageError if there is none."""
    room = model_length - options.sampling.max_tokens
    limit = options.max_prompt_tokens or room
    if limit > room or limit < 1:
        wanted = f"--max-tokens {options.sampling.max_tokens}" + (
            f" and --max-prompt-tokens {limit} together are more" if options.max_prompt_tokens
            else " leaves no room for a prompt")
        raise StageError(f"The model holds {model_length} tokens: {wanted}. Lower "
                         f"{'them' if options.max_prompt_tokens else 'it'}.")
    return limit


def format_options(options: RolloutOptions) -> tuple[dict[str, str], dict[str, Any]]:
    """Options of the prompt format, its defaults and those given, and those for the model's chat template.

    A template's values are JSON where they read so: `enable_thinking=false` is the boolean.
    """
    pairs = [text.partition("=") for text in options.format_options]
    for name, equals, _ in pairs:
        if not equals:
            raise StageError(f"--format-option {name} has no value. Write --format-option {name}=VALUE.")
    given, chosen = {name: value for name, _, value in pairs}, find_format(options.prompt_format)
    own = {name: value for name, value in given.items() if name in chosen.options}
    return chosen.with_options(own), {name: _read_json(value) for name, value in given.items()
                                      if name not in chosen.options}


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def stage_settings(warehouse: Warehouse, options: RolloutOptions, purpose: str,
                   policy: dict[str, Any]) -> dict[str, Any]:
    """What must not change between two runs of the same rollout, flat so that a difference can be named."""
    left_out = (*NOT_SETTINGS, *(NEXT_TURN if options.turn == 1 else FIRST_TURN))
    chosen = {name: value for name, value in vars(options).items() if name not in left_out}
    chosen |= ({"prompt_format": find_format(options.prompt_format).name} if options.turn == 1 else
               {"feedback": find_feedback(options.feedback).name})
    return {**chosen, **asdict(options.sampling), "purpose": purpose, "serve": serving(options, policy),
            "policy_version": policy["policy_version"], "policy_sha256": policy["sha256"],
            "tasks_sha256": warehouse.state.tasks_sha256,
            "tokenizer_sha256": warehouse.facts["tokenizer_sha256"],
            "engine": f"{options.model} at {options.endpoint[0]}" if options.model else
            "vllm server" if options.endpoint else engine_version()}


def serving(options: RolloutOptions, policy: dict[str, Any]) -> str | None:
    """How the policy's adapter is served, 'adapter' or 'merged'; None for a policy without an adapter.

    vLLM's kernels for adapters take half precision alone on a GPU, and on a CPU they make a small model's
    step several times slower. Quantized weights are made from the base by the engine, so nothing can be
    added to them before.
    """
    if policy["kind"] != "lora":
        return None
    if options.serve == "merged" and options.quantization:
        raise StageError("--serve merged with --quantization is not possible: what is quantized would no "
                         "longer be the base that `train` holds. Leave one of them out.")
    if options.serve == "adapter" and options.dtype == "float32" and not options.endpoint and not on_cpu():
        raise StageError("On a GPU vLLM serves adapters in half precision alone. Leave --serve adapter out, "
                         "or sample with --dtype bfloat16 or float16.")
    if options.serve != "auto" or options.endpoint:  # then the servers decide what "auto" is
        return options.serve
    return "merged" if (on_cpu() or options.dtype == "float32") and not options.quantization else "adapter"


def rank_of_adapters(warehouse: Warehouse, options: RolloutOptions) -> int:
    """The rank of the run's adapters, those to come included; 0 where they are merged, or weights whole."""
    trained = read_config(warehouse.root / "config.toml").get("train", {})
    if trained.get("full") or serving(options, {"kind": "lora"}) != "adapter":
        return 0
    newest = warehouse.policy_dir(warehouse.policy_versions()[-1]) / "adapter_config.json"
    if newest.exists():
        return json.loads(newest.read_text(encoding="utf-8"))["r"]
    return trained.get("lora-rank", trained.get("lora_rank", TRAINED_RANK))
