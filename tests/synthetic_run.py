"""Plausible runs written through the storage interface: a healthy one and one for every way to go wrong."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from warehouse.store.commit import commit_json
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import SCHEMA_VERSION, arrow_schema

SCORER = "arc-v1-0a1b2c3d"
SHAPES = ("healthy", "blow-up", "mute", "mismatch", "wrong-adapter", "length-hacking")
LIMIT = 96  # tokens
NOON = datetime.datetime(2026, 1, 5, 12, tzinfo=datetime.UTC)
PROGRAM = ("```python\nimport numpy as np\n\ndef transform(grid):\n    a = np.array(grid)\n    {line}\n"
           "    return a\n```")
LINES = ("a = np.fliplr(a)", "a = np.flipud(a)", "a = np.rot90(a)", "a = a.T",
         "a = np.kron(a, np.ones((2, 2), int))")


class Weather(NamedTuple):
    """What one iteration of a run looks like."""

    solve: float = 0.3          # chance that a completion of a task of middling difficulty is right
    tokens: float = 40.0
    truncated: float = 0.02
    looping: float = 0.0
    nll: float = 0.35
    diversity: float = 1.0      # 0: all completions of a group are the same
    invalid: float = 0.1
    log_ratio: float = 1e-3     # spread of old_logprobs - behaviour_logprobs
    shaped: float = 0.0         # reward that grows with length, right or wrong


def weather(shape: str, iteration: int, onset: int = 5) -> Weather:
    """The iteration of a run of `shape`; what goes wrong begins at `onset`."""
    since = max(0, iteration - onset + 1)
    usual = Weather(solve=min(0.7, 0.25 + 0.02 * iteration), nll=max(0.25, 0.4 - 0.01 * iteration))
    if not since or shape == "healthy":
        return usual
    return {
        "blow-up": usual._replace(truncated=min(0.95, 0.2 * since), looping=min(0.9, 0.15 * since),
                                  nll=usual.nll + 0.5 * since, invalid=min(0.95, 0.2 * since), tokens=70.0,
                                  solve=usual.solve / (1 + since)),
        "mute": usual._replace(tokens=max(3.0, 40.0 / (1 + since)), nll=max(0.005, 0.3 / 4**since),
                               diversity=max(0.05, 1 - 0.4 * since), solve=usual.solve + 0.05 * since),
        "mismatch": usual._replace(log_ratio=0.03 * 2**since),
        "wrong-adapter": usual._replace(log_ratio=1.2 if iteration == onset else 1e-3),
        "length-hacking": usual._replace(tokens=min(85.0, 40.0 + 15.0 * since), shaped=0.12 * since,
                                         solve=usual.solve * 0.8**since),
    }[shape]


def build_run(root: Path, *, shape: str = "healthy", iterations: int = 10, num_tasks: int = 8,
              group_size: int = 16, evals: tuple[int, ...] = (0,), seed: int = 7,
              trained: bool = True) -> Warehouse:
    """Write a whole run of `shape` and open it; the last iteration is scored and trained like the others."""
    random = np.random.default_rng(seed)
    # Nothing here is about kills, so no time goes into flushing to disk or asking git for the revision.
    with (patch("warehouse.store.commit.flush"),
          patch("warehouse.store.stage._revision", return_value="test")):
        warehouse = new_run(root, num_tasks)
        for iteration in range(iterations):
            sky = weather(shape, iteration)
            write_iteration(warehouse, iteration, "train", sky, random, num_tasks, group_size)
            if iteration in evals:
                write_iteration(warehouse, iteration, "eval", sky, random, num_tasks, group_size)
            if trained:
                write_training(warehouse, iteration, sky, random)
    return warehouse


def new_run(root: Path, num_tasks: int = 8) -> Warehouse:
    """A run folder with its tasks and nothing else."""
    root.mkdir(parents=True, exist_ok=True)
    commit_json(
        root / "warehouse.json",
        {"schema_version": SCHEMA_VERSION, "run_id": "5ca1ab1e", "model": "base", "sources": ["synthetic"]},
    )
    commit_json(root / "policies" / "0" / "policy.json", {"version": 0, "parent": None, "sha256": "0" * 64})
    warehouse = open_warehouse(root)
    random = np.random.default_rng(1)
    rows = []
    for number in range(num_tasks):
        pairs = [_pair(random, number) for _ in range(4)]
        rows.append(
            {
                "task_id": f"task-{number:03d}",
                "source": "synthetic",
                "split": "train",
                "heldout": False,
                "position": number,
                "kind": "grid",
                "messages": None,
                "payload": json.dumps({"train": pairs[:3], "test": pairs[3:]}),
            }
        )
    warehouse.write_part("tasks", 0, table("tasks", rows))
    return warehouse


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the Arrow table of a stored kind; columns left out are null."""
    schema = arrow_schema(name)
    return pa.Table.from_pylist(rows, schema=schema)


def write_iteration(warehouse: Warehouse, iteration: int, purpose: str, sky: Weather,
                    random: np.random.Generator, num_tasks: int = 8, group_size: int = 16,
                    scorer: str = SCORER, parts: int = 2) -> None:
    """Prompts, completions and samples of one iteration, in `parts` parts, with their manifests."""
    tasks = warehouse.read("tasks").to_pylist()[:num_tasks]
    rollout = warehouse.stage("rollout", iteration=iteration, purpose=purpose)
    rollout.settle({"group_size": group_size, "temperature": 1.0})
    score = warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer)
    score.settle({"reward": "arc-v1"})
    for part in range(parts):
        chosen = tasks[part::parts]
        completions = [row for task in chosen
                       for row in _completions(task, iteration, purpose, sky, random, group_size)]
        samples = [_sample(row, tasks, sky, random, scorer) for row in completions]
        mark_first_outputs(samples)
        keys = {"iteration": iteration, "purpose": purpose}
        prompts = [_prompt(task, iteration, purpose, group_size) for task in chosen]
        warehouse.write_part("prompts", part, table("prompts", prompts), **keys)
        warehouse.write_part("completions", part, table("completions", completions), **keys)
        warehouse.write_part("samples", part, table("samples", samples), **keys, scorer=scorer)
    rollout.complete(
        {"seconds": {"engine": 2.0, "sampling": 12.0}, "num_completions": num_tasks * group_size}
    )
    score.complete({"seconds": 2.0, "num_samples": num_tasks * group_size})


def mark_first_outputs(samples: list[dict[str, Any]]) -> None:
    """Fill first_output as the fingerprints say."""
    for index, row in enumerate(samples):
        same = [one for one in samples[:index]
                if (one["group_id"], one["fingerprint"]) == (row["group_id"], row["fingerprint"])]
        row["first_output"] = None if row["fingerprint"] is None else not same


def write_training(warehouse: Warehouse, iteration: int, sky: Weather, random: np.random.Generator) -> None:
    """Train rows and steps of one iteration and the policy it wrote."""
    stage = warehouse.stage("train", iteration=iteration)
    stage.settle({"scorer": SCORER, "loss": "dapo"})
    samples = warehouse.read("samples", iteration=iteration, purpose="train", scorer=SCORER).to_pylist()
    completions = warehouse.read("completions", iteration=iteration, purpose="train").to_pylist()
    rewards: dict[str, list[float]] = {}
    for row in samples:
        rewards.setdefault(row["group_id"], []).append(row["reward"])
    rows = [_trained(sample, completion, rewards[sample["group_id"]], sky, random)
            for sample, completion in zip(samples, completions, strict=True)]
    warehouse.write_part("train_samples", 0, table("train_samples", rows), iteration=iteration)
    steps = [{"iteration": iteration, "optimizer_step": step, "global_step": 4 * iteration + step + 1,
              "policy_version": iteration, "loss": -0.01, "grad_norm": 0.4, "learning_rate": 1e-4,
              "num_groups": 2, "num_completions": len(rows) // 4, "num_trainable_tokens": 1000,
              "clip_fraction": 0.01, "policy_kl": 1e-4, "ratio_max": 1.3, "entropy": sky.nll, "ess": 0.97,
              "seconds": 1.2} for step in range(4)]
    warehouse.write_part("train_steps", 0, table("train_steps", steps), iteration=iteration)
    folder = warehouse.scratch(f"policy-{iteration + 1}")
    commit_json(folder / "policy.json", {"version": iteration + 1, "parent": iteration,
                                         "sha256": f"{iteration + 1:064d}"})
    warehouse.commit_policy(iteration + 1, folder)
    stage.complete({"seconds": {"forward": 3.0, "steps": 6.8}, "policy_version": iteration + 1})


def _pair(random: np.random.Generator, number: int) -> dict[str, Any]:
    grid = random.integers(0, 10, size=random.integers(2, 7, size=2))
    flipped = np.fliplr(grid) if number % 2 else np.flipud(grid)
    return {"input": grid.tolist(), "output": flipped.tolist()}


def _prompt(task: dict[str, Any], iteration: int, purpose: str, group_size: int) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "purpose": purpose,
        "task_id": task["task_id"],
        "group_index": 0,
        "group_id": f"{iteration}/{purpose}/{task['task_id']}/0",
        "group_size": group_size,
        "split": "train",
        "prompt_id": task["task_id"],
        "prompt": "In\n12\nOut\n21\n",
        "prompt_ids": [1, 2, 3, 4],
        "num_prompt_tokens": 4,
        "prompt_format": "compact@1",
        "format_options": "{}",
        "prefill": "",
        "seed": 1,
        "flip": False,
        "rotations": 0,
        "color_map": list(range(10)),
        "pair_order": [0, 1, 2],
        "shown_test": 0,
    }


def _completions(task: dict[str, Any], iteration: int, purpose: str, sky: Weather,
                 random: np.random.Generator, group_size: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(group_size):
        cut = random.random() < sky.truncated
        length = LIMIT if cut else int(np.clip(random.normal(sky.tokens, sky.tokens / 8), 2, LIMIT - 1))
        looping = random.random() < sky.looping
        ids = random.integers(0, 300, size=length)
        if looping and length > 20:
            ids[10:] = np.resize([7, 8, 9], length - 10)
        logprobs = -random.exponential(sky.nll, size=length).astype(np.float32)
        rows.append(
            {
                "iteration": iteration,
                "purpose": purpose,
                "task_id": task["task_id"],
                "sample_index": index,
                "group_id": f"{iteration}/{purpose}/{task['task_id']}/0",
                "completion": _text(ids, cut, sky, random),
                "completion_ids": ids.tolist(),
                "behaviour_logprobs": logprobs.tolist(),
                "num_prompt_tokens": 4,
                "num_completion_tokens": length,
                "finish_reason": "length" if cut else "stop",
                "seed": int(random.integers(1 << 40)),
                "policy_version": iteration,
                "policy_sha256": f"{iteration:064d}",
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "max_tokens": LIMIT,
                "logprobs_mode": "processed_logprobs",
                "engine": "scripted 1",
                "dtype": "float32",
                "device": "cpu",
                "host": "somewhere",
                "finished_at": NOON + datetime.timedelta(minutes=iteration),
            }
        )
    return rows


def _text(ids: np.ndarray, cut: bool, sky: Weather, random: np.random.Generator) -> str:
    if cut:
        return "```python\nimport numpy as np\n\ndef transform(grid):\n" + "    a = a.T\n" * 20
    return PROGRAM.format(line=LINES[int(random.random() * len(LINES) * sky.diversity)])


def _sample(row: dict[str, Any], tasks: list[dict[str, Any]], sky: Weather, random: np.random.Generator,
            scorer: str) -> dict[str, Any]:
    number = int(row["task_id"].removeprefix("task-"))
    ease = float(np.clip(sky.solve * (2 - 1.8 * number / max(1, len(tasks) - 1)), 0, 0.95))
    cut = row["finish_reason"] == "length"
    invalid = cut or random.random() < sky.invalid
    right = not invalid and random.random() < ease
    payload = json.loads(tasks[number]["payload"])
    outputs = {part: [pair["output" if right else "input"] for pair in payload[part]] for part in payload}
    ids = row["completion_ids"]
    fours = list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))
    threes = list(zip(ids, ids[1:], ids[2:], strict=False))
    reward = 0.0 if invalid else 10.0 if right else 1.0 + 4 * random.random() * sky.diversity
    variety = max(1, round(8 * sky.diversity))
    looping = len(fours) > 8 and len(set(fours)) < len(fours) / 2
    return {
        **{
            name: row[name]
            for name in (
                "iteration",
                "purpose",
                "task_id",
                "sample_index",
                "group_id",
                "policy_version",
                "finish_reason",
                "num_prompt_tokens",
                "num_completion_tokens",
            )
        },
        "scorer": scorer,
        "split": "train",
        "truncated": cut,
        "reward": reward + sky.shaped * row["num_completion_tokens"],
        "reward_parts": "{}",
        "correct": right,
        "valid_code": not cut,
        "valid_outputs": not invalid,
        "train_pixel_score": float(right) if not invalid else 0.0,
        "train_correct_grids": float(right),
        "train_is_correct": right,
        "test_pixel_score": float(right),
        "test_correct_grids": float(right),
        "test_is_correct": right,
        "fingerprint": None if invalid else "right" if right else f"wrong-{random.integers(variety)}",
        "outputs": None if invalid else json.dumps(outputs),
        "code": None if cut else row["completion"][10:-4],
        "error_class": "no_code" if cut else "runtime_error" if invalid else None,
        "error_name": "ValueError" if invalid and not cut else None,
        "error_message": "could not broadcast <b>arrays</b>" if invalid and not cut else None,
        "cpu_seconds": 0.01,
        "wall_seconds": 0.02,
        "max_rss_mib": 60.0,
        "sandbox_tier": "C",
        "logprob_sum": float(np.sum(row["behaviour_logprobs"])),
        "logprob_min": min(row["behaviour_logprobs"]),
        "nll_sampled": -float(np.mean(row["behaviour_logprobs"])),
        "unique_token_ratio": len(set(ids)) / len(ids),
        "ngram3_unique_ratio": len(set(threes)) / len(threes) if threes else 1.0,
        "ngram4_unique_ratio": len(set(fours)) / len(fours) if fours else 1.0,
        "ngram4_top_share": max(map(fours.count, set(fours))) / len(fours) if fours else 0.0,
        "loop_tokens": len(ids) - 10 if looping else 0,
        "extra": None,
    }


def _trained(sample: dict[str, Any], completion: dict[str, Any], rewards: list[float], sky: Weather,
             random: np.random.Generator) -> dict[str, Any]:
    behaviour = np.array(completion["behaviour_logprobs"])
    old = np.minimum(behaviour + random.normal(0, sky.log_ratio, size=len(behaviour)), 0)
    gap = old - behaviour
    flat = max(rewards) == min(rewards)
    return {
        **{
            name: sample[name]
            for name in ("iteration", "purpose", "task_id", "sample_index", "group_id", "scorer", "reward")
        },
        "trained_iteration": sample["iteration"],
        "staleness": 0,
        "optimizer_step": None if flat else 0,
        "advantage": sample["reward"] - float(np.mean(rewards)),
        "num_trainable_tokens": len(old),
        "drop_reason": "zero_variance" if flat else None,
        "old_logprobs": old.astype(np.float32).tolist(),
        "log_ratio_mean": float(gap.mean()),
        "log_ratio_abs_mean": float(np.abs(gap).mean()),
        "log_ratio_abs_max": float(np.abs(gap).max()),
        "mismatch_kl": float((np.exp(gap) - gap - 1).mean()),
        "importance_weight_mean": float(np.minimum(np.exp(gap), 2).mean()),
        "kept_fraction": 1.0,
        "entropy": sky.nll,
    }
