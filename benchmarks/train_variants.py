"""One trainer on stored rows, in its own process: prints seconds per step and peak memory as JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.train_flex import backward_packed
from benchmarks.train_rows import (
    LEARNING_RATE,
    Shape,
    make_groups,
    new_policy,
    parse_shape,
    peak_mb,
    settings,
    useful_flops,
)
from train.inputs.groups import Group, Rollout
from train.model.packs import PromptGroup
from train.model.policy import CACHED_PROMPT, Policy
from train.model.saving import save_policy
from train.model.shared_prompt import backward_pack
from train.objective.losses import clipped_surrogate
from train.start import new_optimizer
from train.steps import gradients, logprob_pass
from train.steps.accelerator import Processes
from train.steps.budget import choose_tokens
from train.steps.checkpoint import Checkpoints
from train.steps.logprob_pass import fill_logprobs
from train.steps.row import build_batch, forwardable, weigh_rows
from train.steps.steps import Learner, take_step
from warehouse.stages.stop import StopRequest
from warehouse.store.run_folder import Stage, Warehouse

Step = Callable[[int], float]     # takes the index, returns seconds of a pass for the old logprobs


def shared_prompt(policy: Policy, groups: list[Group], per_step: int, *, online: bool, budget: int,
                  way: str | None = None, alone: bool = False) -> Step:
    """This project; `online` takes pi_old from the training forward, `alone` forwards groups one by one.

    `way` shares the prompt by a cache that each row copies or by FlexAttention, else as `train` chooses.
    """
    if way:
        policy.use_attention(way)
    gradients.backward_pack = backward_packed if way == "flex_attention" else backward_pack
    if alone:
        logprob_pass.pack_groups = one_by_one
    budget = budget or choose_tokens(policy, groups)
    chosen = settings("--dtype", "float32", "--tokens-per-batch", str(budget), "--max-mismatch", "9")
    batch, processes = build_batch(groups, 0, chosen), Processes()
    nowhere = Warehouse(Path("nowhere"), {})
    stage = Stage("train", {"iteration": 0}, nowhere)
    plan = [list(range(first, first + per_step)) for first in range(0, len(groups), per_step)]
    learner = Learner(policy, new_optimizer(policy, chosen), batch, plan,
                      Checkpoints(nowhere, stage, processes), processes, chosen,
                      stage, 0, 1.0, online)

    def step(index: int) -> float:
        started = time.perf_counter()
        if not online:
            members = [batch[number] for number in plan[index]]
            fill_logprobs(policy, members, processes, chosen.tokens_per_batch, "old_logprobs")
            for group in members:
                weigh_rows(forwardable([group]), chosen)
        passed = time.perf_counter() - started
        take_step(learner, index, StopRequest(), lambda: None)
        return 0.0 if online else passed

    return step


def one_by_one(policy: Policy, groups: Sequence[PromptGroup], token_budget: int) -> list[list[int]]:
    """As `pack_groups`, a pack for every group."""
    return [[number] for number in range(len(groups))]


def padded_rows(policy: Policy, groups: list[Group], *, checkpointing: bool) -> Step:
    """A plain loop over whole padded rows, prompt and completion, with the same loss and correction."""
    model: Any = policy.model
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=LEARNING_RATE, weight_decay=0)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
        model.train()

    def logprobs(rows: torch.Tensor, num_prompt: int) -> torch.Tensor:
        with policy._precision():
            output = model(input_ids=rows, use_cache=False, logits_to_keep=rows.shape[1] - num_prompt + 1)
        scores = output.logits[:, :-1].float().log_softmax(-1)
        return scores.gather(-1, rows[:, num_prompt:, None]).squeeze(-1)

    def step(index: int) -> float:
        group = groups[index]
        ids = [torch.from_numpy(row.completion_ids) for row in group.rollouts]
        prompt = torch.from_numpy(group.prompt_ids)
        rows = pad_sequence([torch.cat([prompt, row]) for row in ids], batch_first=True).to(policy.device)
        behaviour = torch.stack([torch.tensor(row.behaviour_logprobs) for row in group.rollouts])
        behaviour = behaviour.to(policy.device)
        with torch.no_grad():
            old = logprobs(rows, len(prompt))
        rewards = torch.tensor([row.reward for row in group.rollouts], device=policy.device)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        policy_logprobs = logprobs(rows, len(prompt))
        losses, _ = clipped_surrogate((policy_logprobs - old).exp(), advantages[:, None], clip_low=0.2,
                                      clip_high=0.28)
        (losses * (old - behaviour).exp().clamp(max=3)).mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable().values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return 0.0

    return step


def row_length(rollout: Rollout) -> int:
    """Tokens of a completion."""
    return len(rollout.completion_ids)


def measure(step: Step, count: int) -> dict[str, float]:
    """Seconds per step after one warm-up step, and the peak memory of the process, MB."""
    cpu, wall, passes = [], [], []
    for index in range(count):
        started = time.process_time(), time.perf_counter()
        passes.append(step(index))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
    return {"cpu_seconds": statistics.median(cpu[1:]), "wall_seconds": statistics.median(wall[1:]),
            "pass_seconds": statistics.median(passes[1:]), "peak_mb": peak_mb()}


def run(variant: str, model: str, folder: Path, shape: Shape, count: int, dtype: str, budget: int,
        trl_batch: int) -> dict[str, float]:
    """Measure one variant and save the adapter it ends with."""
    if shape.groups > 1 and variant.startswith(("padded", "flex")):
        sys.exit(f"{variant} takes no shape of several groups")
    policy = new_policy(folder, folder / "adapter", dtype)
    groups = make_groups(policy, shape, count)
    last_step = groups[-shape.groups:]
    work = {"tokens": float(sum(len(group.prompt_ids) + sum(map(row_length, group.rollouts))
                                for group in last_step)),
            "flops": useful_flops(model, last_step, passes=3 if "two-pass" in variant else 2)}
    if variant.startswith("trl"):
        from benchmarks.train_trl import measure_trl
        del policy
        return work | measure_trl(folder, groups, shape, dtype=dtype, batch=trl_batch,
                                  checkpointing=variant == "trl-checkpointing")
    shared = partial(shared_prompt, policy, groups, shape.groups, online=True, budget=budget)
    steps = {"shared": shared,
             "shared-cache": partial(shared, way=CACHED_PROMPT),
             "shared-two-pass": partial(shared, online=False),
             "alone-two-pass": partial(shared, online=False, alone=True),
             "flex": partial(shared, way="flex_attention"),
             "padded": partial(padded_rows, policy, groups, checkpointing=False),
             "padded-checkpointing": partial(padded_rows, policy, groups, checkpointing=True)}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    result = work | measure(steps[variant](), count)
    target = folder / f"after-{variant}-{shape.name}"
    target.mkdir(exist_ok=True)
    save_policy(policy, target, base=str(folder))
    return result


if __name__ == "__main__":
    name, size, where, text, steps, precision, tokens, completions = sys.argv[1:]
    print(json.dumps(run(name, size, Path(where), parse_shape(text), int(steps), precision, int(tokens),
                         int(completions))))
