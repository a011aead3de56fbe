"""Which kernels the gradients of a packed batch spend a GPU's time in, and whether the GPU waits.

    python -m benchmarks.train_profile                                (a GPU; 1.5B, 16,384 tokens)
    python -m benchmarks.train_profile --model small --tokens-per-batch 512
"""

import tempfile
import time
from pathlib import Path

import click
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.train_rows import Shape, make_groups, make_model, new_policy
from train.model.packs import PromptGroup, pack_groups
from train.model.shared_prompt import backward_pack, pack_logprobs


@click.command(context_settings={"show_default": True})
@click.option("--model", default="1.5b")
@click.option("--lora-rank", default=32)
@click.option("--dtype", default="bfloat16")
@click.option("--tokens-per-batch", default=16384)
@click.option("--shape", default="150x16x160", help="Of each group: prompt tokens x completions x tokens.")
def main(model: str, lora_rank: int, dtype: str, tokens_per_batch: int, shape: str) -> None:
    """Print the ways of attention, seconds, and the kernels that take most of the time."""
    folder = Path(tempfile.gettempdir()) / f"train-benchmark-{model}-{lora_rank}"
    folder.mkdir(exist_ok=True)
    make_model(folder, model, lora_rank)
    policy = new_policy(folder, folder / "adapter", dtype)
    click.echo(f"attention {policy.attention} {policy.why_not_shared}, autocast {policy._autocast}")
    prompt, size, length = map(int, shape.split("x"))
    number = tokens_per_batch // (prompt + size * length) + 2
    stored = make_groups(policy, Shape(prompt, size, length, number), 1)
    groups = [PromptGroup(torch.from_numpy(group.prompt_ids),
                          [torch.from_numpy(rollout.completion_ids) for rollout in group.rollouts], 1.0)
              for group in stored]
    pack = [groups[number] for number in pack_groups(policy, groups, tokens_per_batch)[0]]
    tokens = sum(group.num_tokens for group in pack)

    def backward() -> None:
        backward_pack(policy, pack, lambda rows, logprobs, entropy: logprobs.sum() / 1000,
                      token_budget=tokens_per_batch)

    def score() -> None:
        pack_logprobs(policy, pack, token_budget=tokens_per_batch)

    on_gpu = torch.cuda.is_available()
    for name, work in (("old logprobs", score), ("gradients", backward)):
        for _ in range(2):
            work()
        started = time.perf_counter()
        work()
        launched = time.perf_counter() - started
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        click.echo(f"\n{name}: {len(pack)} groups, {tokens} tokens, {seconds:.3f} s ({launched:.3f} s until "
                   f"all was launched): {seconds / tokens * 1e6:.1f} us per token")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities) as record:
            work()
            if on_gpu:
                torch.cuda.synchronize()
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        click.echo(record.key_averages().table(sort_by=order, row_limit=22, max_name_column_width=60))


if __name__ == "__main__":
    main()
