"""The options of `rollout`, for the command line, config.toml and the settings recorded with a rollout."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from rollout.engines.engine import Sampling
from warehouse.fields import iteration_field, option
from warehouse.stages.shard import Shard
from warehouse.store.errors import StageError

FORMS = re.compile(r"(\d*\.?\d+)(groups|s)?")  # of --carry-over


def carry_rule(text: str) -> tuple[float, str]:
    """Amount and unit ('', 'groups' or 's') of '0.9', '24groups' or '600s'; StageError for another text."""
    form = FORMS.fullmatch(text)
    amount, unit = (float(form[1]), form[2] or "") if form else (0.0, "")
    if amount <= 0 or (not unit and amount > 1) or (unit == "groups" and amount % 1):
        raise StageError(f"--carry-over {text} is not possible. Write a share of the completions above "
                         "0 and up to 1 (0.9), a number of groups (24groups) or seconds (600s).")
    return amount, unit


@dataclass(frozen=True)
class RolloutOptions:
    """Every option of `rollout`; a rollout records those that are stored."""

    run: Path
    num_tasks: int | None = option(
        None, "Tasks per iteration, least sampled first; all when left out. An evaluation samples all "
        "unless it is typed.",
        least=1, group="Set first")
    group_size: int = option(16, "Completions sampled per prompt.", least=1)
    prompt_format: str = option(
        "chat", "Prompt format of grid tasks, with or without '@version', or a function of your own.",
        metavar="NAME|FILE.py:NAME", guarded="")
    evaluate: bool = option(False, "Evaluate: sample each of the held-out splits, not to train on.", "--eval",
                            stored=False)

    iteration: int | None = iteration_field("Which tasks, and which policy")
    splits: tuple[str, ...] = option(
        (), "Split to sample; may be repeated. [default: all that are not held out; with --eval all that "
        "are]", "--split")
    tasks_sql: str | None = option(
        None, "Sample only the tasks that this SQL query returns as task_id.", metavar="QUERY")
    label: str | None = option(
        None, "Name of this evaluation, whatever its splits: eval-LABEL. [default: each split is an "
        "evaluation]", stored=False)
    policy_version: int | None = option(
        None, "Policy to sample with; the iteration's own when left out.", "--policy", "--policy-version",
        stored=False)
    seed: int = option(0, "Seed of prompts, augmentation and sampling.")

    format_options: tuple[str, ...] = option(
        (), "Option of the prompt format, as encoder=digits, or of the model's chat template, as "
        "enable_thinking=false; may be repeated.", "--format-option", metavar="NAME=VALUE", group="Prompts")
    augmentation: str = option("none", "Augmentation of grid tasks, drawn per prompt.", "--augment",
                               choices=("none", "dihedral", "colors", "all"))
    shuffle_pairs: bool = option(False, "Show the train pairs in an order drawn per prompt.")
    prompts_per_task: int = option(1, "Prompts per task, each with its own augmentation.", least=1)
    max_prompt_tokens: int | None = option(
        None, "Leave out longer prompts. [default: what the model holds less --max-tokens]", least=1)

    turn: int = option(
        1, "Turn of the conversations; from 2 on, it answers completions of the turn before.", least=1,
        group="Later turns")
    parents_sql: str | None = option(
        None, "Answer the completions that this query over the warehouse returns: task_id, sample_index. "
        "[default: the wrong ones of the turn before, best first]", "--from", metavar="QUERY")
    parents_per_task: int | None = option(
        None, "Completions of a task to answer, each by a group. [default: 1; with --from all it gives]",
        least=1)
    feedback: str = option(
        "tests", "Feedback: tests (train pairs, or the first failing test), error (no test), or a "
        "function of your own.", metavar="NAME|FILE.py:NAME", guarded="")

    sampling: Sampling = field(default_factory=Sampling)
    allow_truncated_sampling: bool = option(
        False, "Allow truncation and penalties in a training rollout.", stored=False)

    dtype: str = option("auto", "Weights and activations. auto: float32 on a CPU, else vLLM's choice.",
                        choices=("auto", "float32", "bfloat16", "float16"), group="Engine")
    max_num_seqs: int = option(128, "Completions sampled at a time.", least=1, stored=False)
    gpu_memory_utilization: float = option(0.9, "Share of the GPU's memory for the engine.", least=0,
                                           most=1, above=True, stored=False)
    tensor_parallel_size: int = option(1, "GPUs the engine spans.", least=1, stored=False)
    quantization: str | None = option(None, "vLLM's quantization, for example fp8 or bitsandbytes.")
    serve: str = option(
        "auto", "Serve the adapter apart from the base, or merged into it. auto: merged in float32 and on a "
        "CPU, otherwise apart.", choices=("auto", "adapter", "merged"))

    endpoint: tuple[str, ...] = option(
        (), "Sample from these running vLLM servers instead of starting an engine. Also set by the variable "
        "ROLLOUT_ENDPOINT.", metavar="URL[,URL..]", parse=lambda text: tuple(dict.fromkeys(
            url.rstrip("/") for url in (text or "").split(",") if url)),
        envvar="ROLLOUT_ENDPOINT", stored=False, group="Running servers, and models behind an API")
    model: str | None = option(
        None, "Sample this model through the OpenAI-compatible API at --endpoint; needs --eval or --distil.",
        "--api-model", "--model", metavar="NAME", guarded="")
    distil: bool = option(
        False, "Sample the training tasks with --api-model, for `train --loss nll`.", stored=False)
    api_key_variable: str = option("OPENAI_API_KEY", "Environment variable that holds the API's key.",
                                   metavar="NAME", guarded="", stored=False)

    carry_over: str | None = option(
        None, "End when this share of the completions (0.9), so many groups (24groups) or seconds (600s) are "
        "done; the next iteration continues the others.", metavar="SHARE|Ngroups|SECONDSs",
        group="Run, stop and resume")
    shard: Shard = option(Shard(), "Sample this share of the parts, as one of several workers.",
                          parse=Shard.parse, metavar="INDEX/COUNT", stored=False)
    part_size: int = option(2048, "Completions per part.", least=1)
    spill_seconds: float = option(60.0, "Seconds between saves of finished completions.", least=0,
                                  stored=False)
    time_limit: float | None = option(None, "Stop after this many seconds and exit with 75, to be run again.",
                                      least=0, stored=False)
    grace: float = option(
        0.0, "Continue sampling this many seconds after SIGTERM or SIGINT, then stop with 75.", least=0,
        stored=False)
    accept_change: tuple[str, ...] = option(
        (), "Continue although this setting differs from the earlier run's, and record it. May be repeated.",
        metavar="SETTING", stored=False)

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)
