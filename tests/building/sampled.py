"""Scored rows that a tiny random model really sampled, for what `train` makes of them."""

from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner, Result
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.building.runs import (
    TURN,
    completion_row,
    finish,
    new_run,
    prompt_row,
    replace_rows,
    sample_row,
    write_rows,
)
from train.cli import train as train_command
from train.model.loading import load_lora
from train.model.policy import Policy
from warehouse.store.names import turn_purpose
from warehouse.store.run_folder import Warehouse

torch.set_num_threads(1)     # two threads that wait for each other on a busy machine are many times slower
VOCABULARY, END, SCORER = 61, 60, "toy-1"
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
         "tie_word_embeddings": True}
OPTIONS = ["--dtype", "float32", "--lora-rank", "4", "--lora-alpha", "8", "--learning-rate", "1e-2",
           "--device", "cpu", "--updates-per-batch", "3"]
SAVING = ["--checkpoint-seconds", "0"]      # a checkpoint after every step


def tiny_run(folder: Path) -> Warehouse:
    """A run folder with a base model of random weights and no rows."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(folder / "model")
    (folder / "model" / "tokenizer.json").write_text("{}")
    return new_run(folder, {f"task-{number}": TURN for number in range(8)}, model=folder / "model")


def sample_rows(warehouse: Warehouse, iteration: int, *, num_groups: int = 8, group_size: int = 6,
                max_tokens: int = 10, sampled_by: int | None = None, claimed: int | None = None,
                scorer: str = SCORER, top_k: int = 0, num_parts: int = 1) -> None:
    """Roll out and score an iteration: the share of even tokens is rewarded, every fourth group alike.

    `sampled_by` is the policy that samples (the iteration's own if None), `claimed` the one that the rows
    name.
    """
    generator = torch.Generator().manual_seed(100 + iteration)
    prompts = []
    for number in range(num_groups):
        prompt_ids = torch.randint(0, VOCABULARY, (5 + 3 * number,), generator=generator)
        prompts.append(prompt_row(f"task-{number}", group_size, iteration=iteration,
                                  prompt_ids=prompt_ids.tolist()))
    _answer(warehouse, prompts, generator, max_tokens, sampled_by, claimed, scorer, top_k, num_parts)


def sample_turn(warehouse: Warehouse, iteration: int, turn: int, *, group_size: int = 3, every: int = 4,
                max_tokens: int = 6, verbatim: bool = True, sampled_by: int | None = None) -> None:
    """Roll out and score the next turn of every so-and-so-many-th completion: two tokens are said to it."""
    generator = torch.Generator().manual_seed(1000 * turn + iteration)
    before, purpose = turn_purpose("train", turn - 1), turn_purpose("train", turn)
    keys: dict[str, Any] = {"iteration": iteration, "purpose": before}
    first = {row["group_id"]: row for row in warehouse.read("prompts", **keys).to_pylist()}
    parents = warehouse.read("completions", **keys).to_pylist()[::every]
    prompts, asked = [], Counter[str]()
    for parent in parents:
        said = torch.randint(0, VOCABULARY, (2,), generator=generator).tolist()
        ids = first[parent["group_id"]]["prompt_ids"] + parent["completion_ids"] + said
        prompts.append(prompt_row(
            parent["task_id"], group_size, iteration=iteration, purpose=purpose, prompt_ids=ids, turn=turn,
            group_index=asked[parent["task_id"]], parent_iteration=iteration, parent_purpose=before,
            parent_sample_index=parent["sample_index"], verbatim_prefix=verbatim))
        asked[parent["task_id"]] += 1
    _answer(warehouse, prompts, generator, max_tokens, sampled_by, None, SCORER)


def _answer(warehouse: Warehouse, prompts: list[dict[str, Any]], generator: torch.Generator, max_tokens: int,
            sampled_by: int | None, claimed: int | None, scorer: str, top_k: int = 0,
            num_parts: int = 1) -> None:
    """Sample the completions of prompts, score them, and finish both stages."""
    keys: dict[str, Any] = {name: prompts[0][name] for name in ("iteration", "purpose")}
    version = keys["iteration"] if sampled_by is None else sampled_by
    claimed = version if claimed is None else claimed
    policy = load_policy(warehouse, version)
    completions, samples = [], []
    groups = sample_groups(policy, prompts, max_tokens, generator, top_k)
    for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        for sample_index, (ids, logprobs, support) in enumerate(group):
            reward = sum(token % 2 == 0 for token in ids) / len(ids) if number % 4 else 0.5
            completions.append(completion_row(
                prompt, prompt["group_index"] * prompt["group_size"] + sample_index, ids, logprobs,
                finish_reason="stop" if ids[-1] == END else "length", policy_version=claimed,
                policy_sha256=warehouse.policy(claimed)["sha256"], max_tokens=max_tokens,
                top_k=top_k, support_ids=support if top_k else None))
            samples.append(sample_row(completions[-1], scorer, reward, correct=reward == 1))
    write_rows(warehouse, "prompts", [prompts])
    size = prompts[0]["group_size"]
    parts = [slice(*pair) for pair in pairwise(len(prompts) * number // num_parts * size
                                               for number in range(num_parts + 1))]
    write_rows(warehouse, "completions", [completions[part] for part in parts])
    write_rows(warehouse, "samples", [samples[part] for part in parts], scorer=scorer)
    finish(warehouse, "rollout", **keys)
    finish(warehouse, "score", **keys, scorer=scorer)


def run_train(warehouse: Warehouse, *arguments: str) -> Result:
    """`train RUN` with OPTIONS and more."""
    return CliRunner().invoke(train_command, [str(warehouse.root), *with_options(*arguments)])


def with_options(*arguments: str) -> list[str]:
    """OPTIONS and more; a training of all weights has no rank."""
    return [*([*OPTIONS[:2], *OPTIONS[6:]] if "--full" in arguments else OPTIONS), *arguments]


def rewrite(warehouse: Warehouse, iteration: int, name: str,
            change: Callable[[dict[str, Any]], dict[str, Any] | None], purpose: str = "train") -> None:
    """Replace a table's rows by `change(row)` of each, as a broken engine or scorer would have left them."""
    scorer = {"scorer": SCORER} if name == "samples" else {}
    replace_rows(warehouse, name, change, iteration=iteration, purpose=purpose, **scorer)


def load_policy(warehouse: Warehouse, version: int) -> Policy:
    """The policy, loaded as the trainer does."""
    adapter = warehouse.policy_dir(version) if warehouse.policy(version)["kind"] == "lora" else None
    return load_lora(warehouse.model, adapter, dtype="float32", device=torch.device("cpu"), seed=0, rank=4,
                     alpha=8, rslora=False, targets="all-linear")


def sample_groups(policy: Policy, prompts: list[dict[str, Any]], max_tokens: int, generator: torch.Generator,
                  top_k: int = 0) -> list[list[tuple[list[int], list[float], list[list[int]]]]]:
    """Draw the completions of all prompts side by side, token by token, each to its end.

    Of each come ids, logprobs, and the ids that top_k left for each token, none where it left all.
    """
    asked = [torch.tensor(prompt["prompt_ids"]) for prompt in prompts for _ in range(prompt["group_size"])]
    ends, rows = torch.tensor([len(ids) for ids in asked]), torch.arange(len(asked))
    chances = torch.cat([torch.empty(max_tokens, prompt["group_size"], VOCABULARY).exponential_(
        generator=generator) for prompt in prompts], dim=1)
    # Shorter rows are filled up behind their end, where no token before it sees them.
    tokens = pad_sequence([*asked, torch.zeros(int(ends.max()) + max_tokens).long()], batch_first=True)[:-1]
    logprobs, support = torch.empty(len(rows), 0), torch.empty(len(rows), 0, top_k, dtype=torch.long)
    with torch.no_grad():
        for place in range(max_tokens):
            scores = policy.full_logits(tokens[:, :int(ends.max()) + place])[rows, ends + place - 1]
            left = scores.topk(top_k).indices
            if top_k:
                scores = torch.full_like(scores, -torch.inf).scatter(1, left, scores.gather(1, left))
            scores = scores.log_softmax(dim=-1)
            drawn = (scores.exp() / chances[place]).argmax(dim=-1, keepdim=True)    # as torch.multinomial
            tokens[rows, ends + place] = drawn.squeeze(1)
            logprobs = torch.cat([logprobs, scores.gather(1, drawn)], dim=1)
            support = torch.cat([support, left[:, None]], dim=1)
    completions = []
    for row, end in enumerate(ends.tolist()):
        ids = tokens[row, end:end + max_tokens].tolist()
        length = (*ids, END).index(END) + 1
        completions.append((ids[:length], logprobs[row, :length].tolist(), support[row, :length].tolist()))
    groups = iter(completions)
    return [list(islice(groups, prompt["group_size"])) for prompt in prompts]
