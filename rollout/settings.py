"""Which options go together, and the settings that a started rollout records."""

import json
from typing import Any

from rollout.engines.engine import MOST_TOP_K
from rollout.engines.environment import engine_version, on_cpu
from rollout.options import RolloutOptions, carry_rule
from rollout.prompts.feedback import find_feedback
from rollout.prompts.formats import find_format
from warehouse.fields import stored_values
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError
from warehouse.store.json_files import option_value
from warehouse.store.names import check_name, turn_of
from warehouse.store.run_folder import Warehouse

FIRST_TURN = ("prompts_per_task", "prompt_format", "format_options", "augmentation", "shuffle_pairs")
NEXT_TURN = ("turn", "parents_sql", "parents_per_task", "feedback")
TRAINED_RANK = 16  # default of `train`
# Settings about where and by what the rows were sampled; a rollout may continue although they changed.
MAY_CHANGE = ("engine", "serve", "dtype", "quantization", "policy_sha256", "tokenizer_sha256", "tasks_sha256",
              "carry_over")


def check_options(options: RolloutOptions) -> None:
    """Refuse values that the engine would refuse after minutes, or that would be stored without effect."""
    if 0 < options.sampling.temperature < 0.01:
        raise StageError(f"--temperature {options.sampling.temperature:g} is not possible: it must be 0 or "
                         "from 0.01 to 2.")
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
    if options.turn == 1 and (options.parents_sql is not None or options.parents_per_task):
        raise StageError("--from and --parents-per-task choose what a later turn answers. Give them together "
                         "with --turn 2.")
    for url in options.endpoint:
        if not url.startswith(("http://", "https://")):
            raise StageError(f"--endpoint {url} is not the address of a server. Write http://HOST:PORT, "
                             "without a path behind it.")
    if options.tensor_parallel_size > 1 and not options.endpoint and on_cpu():
        raise StageError(f"--tensor-parallel-size {options.tensor_parallel_size} spans GPUs, but the "
                         "installed vLLM is the CPU build. Leave it out.")
    _check_api_model(options)
    _check_honest(options)
    _check_carried(options)


def _check_api_model(options: RolloutOptions) -> None:
    if not options.model:
        if options.distil:
            raise StageError("--distil is about a model behind an API. Name that with --api-model and "
                             "--endpoint.")
        return
    if len(options.endpoint) != 1:
        raise StageError(f"--api-model {options.model} needs exactly one address. Give it with --endpoint.")
    if options.evaluate == options.distil:
        raise StageError(f"The answers of --api-model {options.model} come without logprobs, so they cannot "
                         "be rows of purpose 'train': say --eval to evaluate it, or --distil to gather its "
                         "answers to the training tasks for `train --loss nll`.")
    if options.turn > 1:
        raise StageError(f"--turn {options.turn} continues tokens, which --api-model {options.model} "
                         "cannot take. Leave one of them out.")


def _check_honest(options: RolloutOptions) -> None:
    departures = options.sampling.departures()
    if options.sampling.num_likely():
        departures = [name for name in departures if name.endswith("penalty")]
    if departures and not (options.evaluate or options.distil) and not options.allow_truncated_sampling:
        name = departures[0].replace("_", "-")
        way_out = "Leave it out" if name.endswith("penalty") else (
            f"Leave it out, give --top-k {MOST_TOP_K} or less with it (the candidates are then "
            "stored, and used in training)")
        raise StageError(
            f"--{name} makes the sampled distribution differ from the policy's, which biases every "
            f"importance ratio in training. {way_out}, or give --allow-truncated-sampling (train will "
            "refuse such rows by default).")


def _check_carried(options: RolloutOptions) -> None:
    if options.carry_over is None:
        return
    carry_rule(options.carry_over)
    if options.evaluate or options.distil or options.turn > 1 or options.endpoint:
        raise StageError("--carry-over is only for first turns of training by an engine of this machine: no "
                         "later iteration continues evaluations, turns, another model's answers, or what "
                         "servers have begun. Leave it out.")
    if options.sampling.num_likely():
        raise StageError("Training needs the candidates that --top-k left, which are not carried over. "
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
        raise StageError(f"The model holds {model_length} tokens: --max-tokens {options.sampling.max_tokens} "
                         f"leaves room for a prompt of {max(room, 0)}. Lower it, or --max-prompt-tokens.")
    return limit


def format_options(options: RolloutOptions) -> tuple[dict[str, str], dict[str, Any]]:
    """Options of the prompt format, defaults included, and options for the model's chat template.

    A template's values are parsed as JSON if possible: `enable_thinking=false` is the boolean.
    """
    pairs = [text.partition("=") for text in options.format_options]
    for name, equals, _ in pairs:
        if not equals:
            raise StageError(f"--format-option {name} has no value. Write --format-option {name}=VALUE.")
    given, chosen = {name: value for name, _, value in pairs}, find_format(options.prompt_format)
    own = {name: given.get(name, default) for name, default in chosen.options.items()}
    return own, {name: option_value(value) for name, value in given.items() if name not in own}


def stage_settings(warehouse: Warehouse, options: RolloutOptions, purpose: str,
                   policy: dict[str, Any]) -> dict[str, Any]:
    """Settings that must not change between two runs of the same rollout, flat so that an error names one."""
    left_out = NEXT_TURN if options.turn == 1 else FIRST_TURN
    chosen = {name: value for name, value in stored_values(options).items() if name not in left_out}
    chosen |= ({"prompt_format": find_format(options.prompt_format).name} if options.turn == 1 else
               {"feedback": find_feedback(options.feedback).name})
    return {**chosen, "purpose": purpose, "serve": serving(options, policy),
            "policy_version": policy["policy_version"], "policy_sha256": policy["sha256"],
            "tasks_sha256": warehouse.state.tasks_sha256,
            "tokenizer_sha256": warehouse.facts["tokenizer_sha256"],
            "engine": f"{options.model} at {options.endpoint[0]}" if options.model else
            "vllm server" if options.endpoint else engine_version()}


def serving(options: RolloutOptions, policy: dict[str, Any]) -> str | None:
    """How the policy's adapter is served, 'adapter' or 'merged'; None for a policy without an adapter.

    vLLM's adapter kernels support only half precision on a GPU, and on a CPU they make a small model's step
    several times slower. The engine makes quantized weights from the base, so nothing can be merged into
    them before.
    """
    if policy["kind"] != "lora":
        return None
    if options.serve == "merged" and options.quantization:
        raise StageError("--serve merged with --quantization is not possible: the quantized weights would no "
                         "longer be the base that `train` uses. Leave one of them out.")
    if options.serve == "adapter" and options.dtype == "float32" and not options.endpoint and not on_cpu():
        raise StageError("On a GPU vLLM serves adapters only in half precision. Leave --serve adapter out, "
                         "or sample with --dtype bfloat16 or float16.")
    if options.serve != "auto" or options.endpoint:  # then the servers decide what "auto" is
        return options.serve
    return "merged" if (on_cpu() or options.dtype == "float32") and not options.quantization else "adapter"


def engine_dtype(options: RolloutOptions) -> str:
    """The dtype that the engine is asked for.

    vLLM's "auto" makes bfloat16 of a float32 model, which rounds; its kernels for bfloat16 on a CPU crash on
    machines that announce AMX and do not allow it.
    """
    return "float32" if options.dtype == "auto" and on_cpu() and not options.endpoint else options.dtype


def rank_of_adapters(warehouse: Warehouse, options: RolloutOptions) -> int:
    """The rank of the run's adapters, future ones included; 0 if they are merged or weights are whole."""
    trained = read_config(warehouse.root / "config.toml").get("train", {})
    if trained.get("full") or serving(options, {"kind": "lora"}) != "adapter":
        return 0
    newest = warehouse.policy_dir(warehouse.state.newest) / "adapter_config.json"
    if newest.exists():
        return json.loads(newest.read_text(encoding="utf-8"))["r"]
    return trained.get("lora-rank", TRAINED_RANK)
