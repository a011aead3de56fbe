"""Plausible runs: a healthy one and one for every way to go wrong."""

import json
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.building.runs import (
    SHARED,
    completion_row,
    fake_model,
    finish,
    new_run,
    prompt_row,
    sample_row,
    without_waiting,
    write_rows,
)
from warehouse.store.commit import commit_json
from warehouse.store.run_folder import Warehouse

Rows = list[tuple[dict[str, Any], dict[str, Any]]]
SCORER = "arc-v1-0a1b2c3d"
SAMPLING = {"group_size": 16, "temperature": 1.0}
SHAPES = ("healthy", "blow-up", "mute", "mismatch", "wrong-adapter", "length-hacking")
LIMIT = 96  # tokens
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
    sharp: bool = False         # a share `solve` of the tasks is always solved, the others never
    ratio_max: float = 1.3      # of a training step, as are the next two
    policy_kl: float = 1e-4
    grad_norm: float = 0.4
    clipped: float = 0.01
    loss: str = "dapo"
    staleness: int = 0
    outlier: float = 0.0        # log ratio of one token of the first step


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
        "stale": usual._replace(log_ratio=0.25, staleness=1),
        "wrong-adapter": usual._replace(log_ratio=1.2 if iteration == onset else 1e-3),
        "length-hacking": usual._replace(tokens=min(85.0, 40.0 + 15.0 * since), shaped=0.12 * since,
                                         solve=usual.solve * 0.8**since),
    }[shape]


def build_run(root: Path, *, shape: str = "healthy", iterations: int = 10, num_tasks: int = 8,
              group_size: int = 16, evals: tuple[int, ...] = (0,), seed: int = 7,
              trained: bool = True) -> Warehouse:
    """Write a whole run of `shape` and open it; the last iteration is scored and trained like the others."""
    random = np.random.default_rng(seed)
    with without_waiting():
        warehouse = empty_run(root, num_tasks)
        for iteration in range(iterations):
            sky = weather(shape, iteration)
            rows = write_iteration(warehouse, iteration, "train", sky, random, num_tasks, group_size)
            if iteration in evals:
                write_iteration(warehouse, iteration, "eval", sky, random, num_tasks, group_size)
            if trained:
                write_training(warehouse, iteration, sky, random, rows)
    return warehouse


def empty_run(root: Path, num_tasks: int = 8) -> Warehouse:
    """A run folder with tasks task-000.. and nothing else."""
    random = np.random.default_rng(1)
    pairs = {f"task-{number:03d}": [_pair(random, number) for _ in range(4)] for number in range(num_tasks)}
    tasks = {task_id: {"train": four[:3], "test": four[3:]} for task_id, four in pairs.items()}
    warehouse = new_run(root, tasks, model=fake_model(root / "base"))
    shutil.rmtree(root / "base")                   # made up, like the policies: nobody may ask it
    (warehouse.policy_dir(0) / "policy.json").unlink()
    commit_json(warehouse.policy_dir(0) / "policy.json",
                {"policy_version": 0, "parent": None, "sha256": policy_sha256(0)})
    return warehouse


def write_iteration(warehouse: Warehouse, iteration: int, purpose: str, sky: Weather,
                    random: np.random.Generator, num_tasks: int = 8, group_size: int = 16,
                    scorer: str = SCORER, parts: int = 2) -> Rows:
    """Prompts, completions and samples of one iteration, in `parts` parts, with their manifests.

    Returns every sample with its completion.
    """
    payloads = {row["task_id"]: json.loads(row["payload"])
                for row in warehouse.read("tasks").to_pylist()[:num_tasks]}
    tasks = {task_id: {right: json.dumps({part: [pair["output" if right else "input"] for pair in pairs]
                                          for part, pairs in payload.items()}) for right in (True, False)}
             for task_id, payload in payloads.items()}      # outputs of right programs, and of others
    prompts, completions, samples = [], [], []
    for part in range(parts):
        prompts.append([prompt_row(task_id, group_size, iteration=iteration, purpose=purpose, flip=False,
                                   rotations=0, color_map=list(range(10)), pair_order=[0, 1, 2], shown_test=0)
                        for task_id in list(tasks)[part::parts]])
        completions.append([row for prompt in prompts[-1] for row in
                            _completions(prompt, policy_sha256(iteration), sky, random)])
        samples.append([_sample(row, tasks, sky, random, scorer) for row in completions[-1]])
        mark_first_outputs(samples[-1])
    sampling, scoring = {**SAMPLING, "group_size": group_size}, {"reward": "arc-v1"}
    write_rows(warehouse, "prompts", prompts, settings=sampling)
    write_rows(warehouse, "completions", completions)
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    number = num_tasks * group_size
    finish(warehouse, "rollout", sampling,
           {"seconds": {"engine": 2.0, "sampling": 12.0}, "num_completions": number}, **keys)
    write_rows(warehouse, "samples", samples, scorer=scorer, settings=scoring)
    finish(warehouse, "score", scoring, {"seconds": 2.0, "num_samples": number},
           **keys, scorer=scorer)
    return list(zip(chain(*samples), chain(*completions), strict=True))


def policy_sha256(version: int) -> str:
    """The made-up hash of a policy."""
    return f"{version:064d}"


def mark_first_outputs(samples: list[dict[str, Any]]) -> None:
    """Fill first_output as the fingerprints say."""
    seen = set()
    for row in samples:
        output = row["group_id"], row["fingerprint"]
        row["first_output"] = None if row["fingerprint"] is None else output not in seen
        seen.add(output)


def write_training(warehouse: Warehouse, iteration: int, sky: Weather, random: np.random.Generator,
                   sampled: Rows) -> None:
    """Train rows and steps of one iteration and the policy it wrote."""
    rewards: dict[str, list[float]] = {}
    for sample, _ in sampled:
        rewards.setdefault(sample["group_id"], []).append(sample["reward"])
    rows = [_train_row(sample, completion, rewards[sample["group_id"]], sky, random)
            for sample, completion in sampled]
    settings = {"scorer": SCORER, "loss": sky.loss}
    write_rows(warehouse, "train_samples", [rows], settings=settings)
    ratios = np.exp(np.concatenate([np.array(row["old_logprobs"]) - completion["behaviour_logprobs"]
                                    for row, (_, completion) in zip(rows, sampled, strict=True)]))
    steps = np.array_split(ratios, 4)
    steps[0][0] *= np.exp(sky.outlier)
    write_rows(warehouse, "train_tokens", [[
        {**{name: row[name] for name in ("iteration", "purpose", "task_id", "sample_index")},
         "trained_iteration": iteration, "optimizer_step": number % 4,
         "log_drift": np.linspace(-0.1, 0.1, row["num_trainable_tokens"], dtype=np.float32).tolist(),
         "clipped": [0] * row["num_trainable_tokens"]}
        for number, row in enumerate(rows) if row["drop_reason"] is None]])
    write_rows(warehouse, "train_steps", [[
        {"iteration": iteration, "optimizer_step": step, "global_step": 4 * iteration + step + 1,
         "policy_version": iteration, "loss": -0.01, "grad_norm": sky.grad_norm, "learning_rate": 1e-4,
         "num_groups": 2, "num_completions": len(rows) // 4, "num_trainable_tokens": 1000,
         "clip_fraction": sky.clipped, "policy_kl": sky.policy_kl, "ratio_max": sky.ratio_max,
         "base_kl": 0.01 * (iteration + 1), "base_log_ratio": 0.02, "entropy": sky.nll,
         "ess": float(of.sum() ** 2 / (of ** 2).sum() / len(of)), "extra": None,
         "seconds": 1.2} for step, of in enumerate(steps)]])
    folder = warehouse.scratch(f"policy-{iteration + 1}")
    commit_json(folder / "policy.json", {"policy_version": iteration + 1, "parent": iteration,
                                         "sha256": policy_sha256(iteration + 1)})
    warehouse.commit_policy(iteration, folder)
    finish(warehouse, "train", settings,
           {"scorer": SCORER, "seconds": {"forward": 3.0, "steps": 6.8}, "policy_version": iteration + 1},
           iteration=iteration)


def _pair(random: np.random.Generator, number: int) -> dict[str, Any]:
    grid = random.integers(0, 10, size=random.integers(2, 7, size=2))
    flipped = np.fliplr(grid) if number % 2 else np.flipud(grid)
    return {"input": grid.tolist(), "output": flipped.tolist()}


def _completions(prompt: dict[str, Any], sha256: str, sky: Weather,
                 random: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for index in range(prompt["group_size"]):
        cut = random.random() < sky.truncated
        length = LIMIT if cut else int(np.clip(random.normal(sky.tokens, sky.tokens / 8), 2, LIMIT - 1))
        looping = random.random() < sky.looping
        ids = random.integers(0, 300, size=length)
        if looping and length > 20:
            ids[10:] = np.resize([7, 8, 9], length - 10)
        logprobs = -random.exponential(sky.nll, size=length).astype(np.float32)
        rows.append(completion_row(
            prompt, index, ids.tolist(), logprobs.tolist(), _text(cut, sky, random),
            finish_reason="length" if cut else "stop", seed=int(random.integers(1 << 40)),
            policy_sha256=sha256, max_tokens=LIMIT))
    return rows


def _text(cut: bool, sky: Weather, random: np.random.Generator) -> str:
    if cut:
        return "```python\nimport numpy as np\n\ndef transform(grid):\n" + "    a = a.T\n" * 20
    return PROGRAM.format(line=LINES[int(random.random() * len(LINES) * sky.diversity)])


def _sample(row: dict[str, Any], tasks: dict[str, dict[bool, str]], sky: Weather, random: np.random.Generator,
            scorer: str) -> dict[str, Any]:
    number = list(tasks).index(row["task_id"])
    ease = float(np.clip(sky.solve * (2 - 1.8 * number / max(1, len(tasks) - 1)), 0, 0.95))
    ease = float(number < sky.solve * len(tasks)) if sky.sharp else ease
    cut = row["finish_reason"] == "length"
    invalid = cut or random.random() < sky.invalid
    right = not invalid and random.random() < ease
    reward = 0.0 if invalid else 10.0 if right else 1.0 + 4 * random.random() * sky.diversity
    variety = max(1, round(8 * sky.diversity))
    return sample_row(
        row, scorer, reward + sky.shaped * row["num_completion_tokens"],
        correct=right, valid_code=not cut, valid_outputs=not invalid, train_is_correct=right,
        train_pixel_score=float(right), train_correct_grids=float(right), test_pixel_score=float(right),
        test_correct_grids=float(right), test_is_correct=right,
        fingerprint=None if invalid else "right" if right else f"wrong-{random.integers(variety)}",
        outputs=None if invalid else tasks[row["task_id"]][right],
        code=None if cut else row["completion"][10:-4],
        error_class="no_code" if cut else "runtime_error" if invalid else None,
        error_name="ValueError" if invalid and not cut else None,
        error_message="could not broadcast <b>arrays</b>" if invalid and not cut else None,
        cpu_seconds=0.01, wall_seconds=0.02, max_rss_mib=60.0, sandbox_tier="C", **_token_columns(row))


def _token_columns(row: dict[str, Any]) -> dict[str, Any]:
    """What `score` measures of the tokens of a completion."""
    ids, logprobs = row["completion_ids"], row["behaviour_logprobs"]
    threes = list(zip(ids, ids[1:], ids[2:], strict=False))
    fours = list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))
    looping = len(fours) > 8 and len(set(fours)) < len(fours) / 2
    return {"logprob_sum": sum(logprobs), "logprob_min": min(logprobs),
            "nll_sampled": -sum(logprobs) / len(logprobs), "unique_token_ratio": len(set(ids)) / len(ids),
            "ngram3_unique_ratio": len(set(threes)) / len(threes) if threes else 1.0,
            "ngram4_unique_ratio": len(set(fours)) / len(fours) if fours else 1.0,
            "ngram4_top_share": max(Counter(fours).values()) / len(fours) if fours else 0.0,
            "loop_tokens": len(ids) - 10 if looping else 0}


def _train_row(sample: dict[str, Any], completion: dict[str, Any], rewards: list[float], sky: Weather,
               random: np.random.Generator) -> dict[str, Any]:
    behaviour = np.array(completion["behaviour_logprobs"])
    old = np.minimum(behaviour + random.normal(0, sky.log_ratio, size=len(behaviour)), 0)
    gap = old - behaviour
    flat = max(rewards) == min(rewards)
    return {**{name: sample[name] for name in (*SHARED, "scorer", "reward")},
            "trained_iteration": sample["iteration"], "staleness": sky.staleness,
            "optimizer_step": None if flat else 0,
            "advantage": sample["reward"] - sum(rewards) / len(rewards), "num_trainable_tokens": len(old),
            "drop_reason": "zero_variance" if flat else None,
            "old_logprobs": old.astype(np.float32).tolist(), "log_ratio_mean": float(gap.mean()),
            "log_ratio_abs_mean": float(np.abs(gap).mean()), "log_ratio_abs_max": float(np.abs(gap).max()),
            "mismatch_kl": float((np.exp(gap) - gap - 1).mean()),
            "importance_weight_mean": float(np.minimum(np.exp(gap), 2).mean()), "kept_fraction": 1.0,
            "entropy": sky.nll}
