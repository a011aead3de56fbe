"""The options of `rollout`, for the command line, config.toml and the settings recorded with a rollout."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from rollout.engines.engine import Sampling
from warehouse.fields import iteration_field, option
from warehouse.options import SHARD_HELP, TIME_LIMIT_HELP, use_eval_table
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
        None, "Tasks per iteration, least sampled first; --eval ignores [rollout]. [default: all]", least=1,
        group="Set first")
    group_size: int = option(16, "Completions per prompt.", least=1)
    prompt_format: str = option(
        "chat", "Prompt format of grid tasks, also with '@version', or your own function.",
        metavar="NAME|FILE.py:NAME", guarded="")
    evaluate: bool = option(False, "Evaluate on the held-out splits, with [eval] of config.toml.", "--eval",
                            stored=False, callback=use_eval_table)

    iteration: int | None = iteration_field("Tasks and policy")
    splits: tuple[str, ...] = option(
        (), "Split to sample; repeatable. [default: all not held out; with --eval all held out]", "--split")
    tasks_sql: str | None = option(None, "Sample only tasks that this query returns as task_id.",
                                   metavar="QUERY")
    label: str | None = option(
        None, "Make all splits one evaluation, eval-LABEL. [default: one per split]", stored=False)
    policy_version: int | None = option(None, "Policy to sample with. [default: the iteration's]", "--policy",
                                        "--policy-version", stored=False)
    seed: int = option(0, "Seed of prompts, augmentation and sampling.")

    format_options: tuple[str, ...] = option(
        (), "Option of the prompt format, or of the chat template, as enable_thinking=false; repeatable.",
        "--format-option", metavar="NAME=VALUE", group="Prompts")
    augmentation: str = option("none", "Augmentation of grid tasks, drawn per prompt.", "--augment",
                               choices=("none", "dihedral", "colors", "all"))
    shuffle_pairs: bool = option(False, "Draw the order of train pairs per prompt.")
    prompts_per_task: int = option(1, "Prompts per task, each with its own augmentation.", least=1)
    max_prompt_tokens: int | None = option(
        None, "Leave out longer prompts. [default: what the model holds less --max-tokens]", least=1)

    turn: int = option(1, "Turn of the conversations; from 2 on, answer completions of the previous turn.",
                       least=1, group="Later turns")
    parents_sql: str | None = option(
        None, "Answer completions that this query returns: task_id, sample_index. [default: wrong ones of "
        "the previous turn, best first]", "--from", metavar="QUERY")
    parents_per_task: int | None = option(
        None, "Completions to answer per task, each by a group. [default: 1; with --from all]", least=1)
    feedback: str = option(
        "tests", "tests (train pairs, or the first failing test), error (no test), or your own function.",
        metavar="NAME|FILE.py:NAME", guarded="")

    sampling: Sampling = field(default_factory=Sampling)
    allow_truncated_sampling: bool = option(
        False, "Allow truncation and penalties in training rollouts.", stored=False)

    dtype: str = option("auto", "Weights and activations. auto: float32 on a CPU, else vLLM's choice.",
                        choices=("auto", "float32", "bfloat16", "float16"), group="Engine")
    max_num_seqs: int = option(128, "Completions sampled at once.", least=1, stored=False)
    gpu_memory_utilization: float = option(0.9, "Share of GPU memory for the engine.", least=0,
                                           most=1, above=True, stored=False)
    tensor_parallel_size: int = option(1, "GPUs per engine.", least=1, stored=False)
    quantization: str | None = option(None, "vLLM's quantization, for example fp8.")
    serve: str = option(
        "auto", "Adapter apart from the base, or merged into it. auto: merged in float32 and on a CPU, else "
        "apart.", choices=("auto", "adapter", "merged"))

    endpoint: tuple[str, ...] = option(
        (), "Sample from these running vLLM servers. Also set by the variable ROLLOUT_ENDPOINT.",
        metavar="URL[,URL..]", parse=lambda text: tuple(dict.fromkeys(
            url.rstrip("/") for url in (text or "").split(",") if url)),
        envvar="ROLLOUT_ENDPOINT", stored=False, group="Running servers and APIs")
    model: str | None = option(
        None, "Sample this model through the OpenAI-compatible API at --endpoint; needs --eval or --distil.",
        "--api-model", "--model", metavar="NAME", guarded="")
    distil: bool = option(
        False, "Sample the training tasks with --api-model, for `train --loss nll`.", stored=False)
    api_key_variable: str = option("OPENAI_API_KEY", "Environment variable with the API's key.",
                                   metavar="NAME", guarded="", stored=False)

    carry_over: str | None = option(
        None, "End after this share of completions (0.9), groups (24groups) or seconds (600s); the next "
        "iteration continues the others.", metavar="SHARE|Ngroups|SECONDSs", group="Run and resume")
    shard: Shard = option(Shard(), SHARD_HELP, parse=Shard.parse, metavar="INDEX/COUNT", stored=False)
    part_size: int = option(2048, "Completions per part.", least=1)
    spill_seconds: float = option(60.0, "Seconds between saves of finished completions.", least=0,
                                  stored=False)
    time_limit: float | None = option(None, TIME_LIMIT_HELP, least=0, stored=False)
    grace: float = option(0.0, "Seconds to continue sampling after SIGTERM or SIGINT.", least=0, stored=False)
    accept_change: tuple[str, ...] = option(
        (), "Continue although this setting changed, and record it; repeatable.", metavar="SETTING",
        stored=False)

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)
