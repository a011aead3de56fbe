"""What is checked of one family of models: gradients, adapters, weights written and read, the loop.

`python -m benchmarks.model_checks FAMILY FOLDER` makes a tiny random model of it and prints one line of JSON.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig
from transformers.utils import logging

from benchmarks.model_families import FAMILIES
from rollout.engines.merged import merge
from train.model.loading import experts_of, load_base, load_full, load_lora
from train.model.packs import PromptGroup, pack_groups
from train.model.policy import Policy
from train.model.saving import TOKENIZER_PATTERNS, save_policy
from train.model.shared_prompt import backward_pack
from train.model.tiny_copy import tiny_copy
from warehouse.options import open_run
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import StageError, first_line

STARTER = Path(__file__).parents[1] / "examples" / "starter" / "model"
VOCABULARY, CPU = 326, torch.device("cpu")
LORA: dict[str, Any] = {"dtype": "float32", "device": CPU, "seed": 3, "rank": 4, "alpha": 8.0,
                        "rslora": False}
BUDGETS = 20, 1000      # tokens at a time: less than a group, and more than all


def make_model(family: str, folder: Path) -> bool:
    """A tiny random model of a family with the starter's tokenizer; whether it has experts."""
    model = tiny_copy(AutoConfig.for_model(**{"model_type": family, **FAMILIES[family]}), VOCABULARY)
    model.save_pretrained(folder)  # type: ignore[operator]
    for pattern in TOKENIZER_PATTERNS:
        for source in STARTER.glob(pattern):
            shutil.copy2(source, folder / source.name)
    return bool(experts_of(model))


def open_policy(folder: Path, kind: str, targets: str = "all-linear") -> Policy:
    """All weights, or an adapter that changes something."""
    if kind == "full":
        return load_full(str(folder), dtype="float32", device=CPU)
    policy = load_lora(str(folder), None, targets=targets, **LORA)
    generator = torch.Generator().manual_seed(4)
    for parameter in policy.trainable().values():
        parameter.data.normal_(std=0.05, generator=generator)
    return policy


def some_groups() -> list[PromptGroup]:
    """Two groups of unequal completions, one of a single token."""
    generator = torch.Generator().manual_seed(5)

    def draw(length: int) -> Tensor:
        return torch.randint(4, 97, (length,), generator=generator)
    return [PromptGroup(draw(prompt), [draw(length) for length in lengths], 0.8)
            for prompt, lengths in ((23, (9, 1, 14, 3)), (11, (6, 7)))]


def gradient_error(policy: Policy) -> float:
    """How far gradients are from those of rows one by one by the model itself, as a share of their norm."""
    groups, generator = some_groups(), torch.Generator().manual_seed(6)
    weights = [torch.randn(len(ids), generator=generator) for group in groups for ids in group.completions]
    policy.model.zero_grad()
    _backward_rows(policy, groups, weights)
    expected = _gradients(policy)
    size = math.sqrt(sum(float(gradient.square().sum()) for gradient in expected.values()))
    worst = 0.0
    for token_budget in BUDGETS:
        policy.model.zero_grad()
        _backward_groups(policy, groups, weights, token_budget)
        found = _gradients(policy)
        error = math.sqrt(sum(float((found.get(name, torch.zeros(())) - gradient).square().sum())
                              for name, gradient in expected.items()))
        worst = max(worst, error / size)
    return worst


def _backward_rows(policy: Policy, groups: Sequence[PromptGroup], weights: Sequence[Tensor]) -> None:
    """A plain forward and backward of each row by the model itself."""
    rows = [(group, ids) for group in groups for ids in group.completions]
    for (group, ids), weight in zip(rows, weights, strict=True):
        whole = torch.cat([group.prompt_ids, ids])
        logits = policy.full_logits(whole[None])[0, len(group.prompt_ids) - 1:-1].float() / group.temperature
        logprobs = logits.log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
        (logprobs * weight).sum().backward()


def _backward_groups(policy: Policy, groups: Sequence[PromptGroup], weights: Sequence[Tensor],
                     token_budget: int) -> None:
    starts = [sum(len(group.completions) for group in groups[:number]) for number in range(len(groups))]
    for pack in pack_groups(policy, groups, token_budget):
        of_pack = [weights[starts[number] + row] for number in pack
                   for row in range(len(groups[number].completions))]

        def rows_loss(rows: list[int], logprobs: Tensor, _: Tensor,
                      of_pack: list[Tensor] = of_pack) -> Tensor:
            return (logprobs * pad_sequence([of_pack[row] for row in rows], batch_first=True)).sum()
        backward_pack(policy, [groups[number] for number in pack], rows_loss, token_budget=token_budget)


def _gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in policy.trainable().items()
            if parameter.grad is not None}


def saved_error(base: Path, folder: Path, targets: str = "all-linear") -> float:
    """How far logits move when an adapter is written and read, exported and read, merged and read."""
    policy, ids = open_policy(base, "lora", targets), torch.arange(40)[None] * 7 % 97
    folder.mkdir()
    save_policy(policy, folder, base=str(base))
    with torch.no_grad():
        expected = policy.full_logits(ids)
        again = load_lora(str(base), folder, targets=targets, **LORA)
        error = float((again.full_logits(ids) - expected).abs().max())
        for name, write in (("export", lambda to: again.model.merge_and_unload().save_pretrained(to)),  # type: ignore[operator]
                            ("merged", lambda to: merge(base, folder, to, "float32"))):
            (folder / name).mkdir()
            write(folder / name)
            merged = load_base(str(folder / name), None, dtype="float32")
            error = max(error, float((merged(input_ids=ids).logits - expected).abs().max()))
        return error


def loop(model: Path, folder: Path, targets: str) -> dict[str, Any] | str:
    """Two iterations with vLLM in the first dtype that the doctor finds, or why it finds none."""
    done = run_commands(f"warehouse doctor rollout --model {model} --json")
    found = json.loads(done.stdout)["rollout"]
    for dtype, gap in found.get("dtypes", {}).items():
        if isinstance(gap, float):
            return loop_in(model, folder, dtype, targets)
    return str(found["lines"][-1])


def loop_in(model: Path, folder: Path, dtype: str, targets: str) -> dict[str, Any]:
    """Two iterations of the commands, and the export; how far engine and trainer were apart."""
    run, reward, exported = folder / "run", folder / "reward.py", folder / "exported"
    reward.write_text("def even(completion_ids, **_):\n"
                      "    return [sum(id % 2 == 0 for id in ids) / len(ids) for ids in completion_ids]\n")
    iteration = (f"rollout {run} --num-tasks 4 --group-size 4 --max-tokens 12 --dtype {dtype} "
                 "--prompt-format compact --max-num-seqs 16\n"
                 f"score {run} --reward-file {reward}:even\n"
                 f"train {run} --dtype {dtype} --learning-rate 1e-3 --device cpu --lora-rank 8 "
                 f"--lora-targets {targets} --max-mismatch 1\n")
    script = (f"set -e\nwarehouse init {run} --model {model} --tasks synthetic:4:7\n{2 * iteration}"
              f"train export {run} --output {exported}\n")
    done = run_commands(script)
    if done.returncode:
        raise StageError(error_of(done.stderr))
    with connect(open_run(str(run))) as connection:
        rows = rows_of(connection,
                       "SELECT iteration, mismatch_kl, log_ratio_abs_max FROM mismatch ORDER BY 1")
    return {"dtype": dtype, "mismatch_kl": [row["mismatch_kl"] for row in rows],
            "log_ratio": [row["log_ratio_abs_max"] for row in rows]}


def run_commands(script: str) -> subprocess.CompletedProcess[str]:
    """How a script of commands ended, and what it printed."""
    return subprocess.run(["warehouse", "warm", "bash", "-c", script], capture_output=True, text=True,
                          check=False, env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"})


def error_of(output: str) -> str:
    """The line of an output that says what went wrong."""
    lines = [line for line in output.splitlines() if re.match(r"(\w+Error|Error)\b", line)] or [output[-200:]]
    return lines[-1].removeprefix("Error: ")[:300]


def tried(check: Any, *arguments: Any) -> Any:
    """What a check gives, or the sentence with which it fails."""
    try:
        return check(*arguments)
    except Exception as error:      # a library says what it lacks in its own way
        return str(error) if isinstance(error, StageError) else first_line(error)


def check_family(family: str, folder: Path, *, engine: bool) -> dict[str, Any]:
    """All that is checked of a family."""
    model, row = folder / "model", dict[str, Any](family=family)
    targets = "all-linear,experts" if make_model(family, model) else "all-linear"
    for kind in ("lora", "full"):
        policy = tried(open_policy, model, kind, targets)
        row[f"{kind}_way"] = policy.attention if isinstance(policy, Policy) else policy
        if isinstance(policy, Policy):
            row[f"{kind}_error"] = tried(gradient_error, policy)
    row |= {"targets": targets, "saved_error": tried(saved_error, model, folder / "saved", targets)}
    if engine:
        row["engine"] = tried(loop, model, folder, targets)
    return row


def main() -> None:
    """Check a family, the first argument, in a folder, the second; with `engine`, the third, the loop too."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    family, folder, *more = sys.argv[1:]
    print(json.dumps(check_family(family, Path(folder), engine="engine" in more)))


if __name__ == "__main__":
    main()
