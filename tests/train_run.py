"""A run folder with scored rows that a tiny random model really sampled, for the tests of the train room."""

import datetime
import json
import shutil
from pathlib import Path

import pyarrow as pa
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from train.model.policy import load_lora
from warehouse.store.base_model import find_model
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import SCHEMA_VERSION, arrow_schema

torch.set_num_threads(1)     # two threads that wait for each other on a busy machine are many times slower
VOCABULARY, END, SCORER = 61, 60, "toy-1"
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
         "tie_word_embeddings": True}
OPTIONS = ["--dtype", "float32", "--lora-rank", "4", "--lora-alpha", "8", "--learning-rate", "1e-2",
           "--device", "cpu",
           "--updates-per-shard", "3", "--checkpoint-seconds", "0"]


def make_run(folder: Path) -> Warehouse:
    """A run folder with a base model of random weights and no rows."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(folder / "model")
    (folder / "model" / "tokenizer.json").write_text("{}")
    sha256 = find_model(str(folder / "model"), folder).sha256
    (folder / "policies" / "0").mkdir(parents=True)
    (folder / "policies" / "0" / "policy.json").write_text(json.dumps(
        {"policy_version": 0, "sha256": sha256, "parent": None, "kind": "base", "base": "model"}))
    (folder / "warehouse.json").write_text(json.dumps(
        {"schema_version": SCHEMA_VERSION, "run_id": "test", "model": "model", "model_sha256": sha256}))
    return open_warehouse(folder)


def sample_rows(warehouse: Warehouse, iteration: int, *, num_groups: int = 8, group_size: int = 6,
                max_tokens: int = 10,
                sampled_by: int | None = None, claimed: int | None = None, scorer: str = SCORER) -> None:
    """Roll out and score an iteration: the reward is the share of even tokens, every fourth group gets equal
    rewards.

    `sampled_by` is the policy that samples (the iteration's own if None), `claimed` the one that the rows
    name.
    """
    version = iteration if sampled_by is None else sampled_by
    claimed = version if claimed is None else claimed
    generator = torch.Generator().manual_seed(100 + iteration)
    policy = load_policy(warehouse, version)
    prompts, completions, samples = [], [], []
    for number in range(num_groups):
        task_id, group_id = f"task-{number}", f"{iteration}-train-task-{number}-0"
        prompt_ids = torch.randint(0, VOCABULARY, (5 + 3 * number,), generator=generator)
        prompts.append({"iteration": iteration, "purpose": "train", "task_id": task_id, "group_index": 0,
                        "group_id": group_id, "group_size": group_size, "prompt_ids": prompt_ids.tolist(),
                        "num_prompt_tokens": len(prompt_ids)})
        for index in range(group_size):
            ids, logprobs = sample(policy, prompt_ids, max_tokens, generator)
            keys = {"iteration": iteration, "purpose": "train", "task_id": task_id, "sample_index": index,
                    "group_id": group_id, "policy_version": claimed}
            reward = sum(token % 2 == 0 for token in ids) / len(ids) if number % 4 else 0.5
            completions.append({
                **keys, "completion_ids": ids, "behaviour_logprobs": logprobs,
                "num_completion_tokens": len(ids),
                "finish_reason": "stop" if ids[-1] == END else "length", "temperature": 1.0, "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
                "policy_sha256": warehouse.policy(claimed)["sha256"], "logprobs_mode": "processed_logprobs",
                "dtype": "float32", "finished_at": datetime.datetime.now(datetime.UTC)})
            samples.append({**keys, "scorer": scorer, "reward": reward, "correct": reward == 1})
    write(warehouse, iteration, prompts, completions, samples, scorer)


def write(warehouse, iteration, prompts, completions, samples, scorer=SCORER):
    """Write rows as complete rollout and score stages."""
    keys = {"iteration": iteration, "purpose": "train"}
    for table, rows, more in (("prompts", prompts, {}), ("completions", completions, {}),
                              ("samples", samples, {"scorer": scorer})):
        warehouse.write_part(table, 0, pa.Table.from_pylist(rows, schema=arrow_schema(table)), **keys, **more)
    warehouse.stage("rollout", **keys).complete({})
    warehouse.stage("score", **keys, scorer=scorer).complete({})


def rewrite(warehouse, iteration, table, change):
    """Replace a table's rows by `change(row)` of each, as a broken engine or scorer would have left them."""
    keys = {"iteration": iteration, "purpose": "train", **({"scorer": SCORER} if table == "samples" else {})}
    rows = [change(row) for row in warehouse.read(table, **keys).to_pylist()]
    for part in warehouse.parts(table, **keys):
        part.unlink()
    rows = [row for row in rows if row is not None]
    warehouse.write_part(table, 0, pa.Table.from_pylist(rows, schema=arrow_schema(table)), **keys)
    stage = warehouse.stage("score" if table == "samples" else "rollout", **keys)
    (stage.folder / "manifest.json").unlink()
    stage.complete({})


def load_policy(warehouse: Warehouse, version: int):
    """The policy, loaded as the trainer does."""
    return load_lora(warehouse.model, warehouse.policy_dir(version) if version else None, dtype="float32",
                     device=torch.device("cpu"), seed=0, rank=4, alpha=8, rslora=False, targets="all-linear")


def sample(policy, prompt_ids, max_tokens, generator):
    """Draw one completion token by token: ids and their logprobs."""
    ids, logprobs = [], []
    with torch.no_grad():
        while len(ids) < max_tokens and (not ids or ids[-1] != END):
            logits = policy.full_logits(torch.cat([prompt_ids, torch.tensor(ids, dtype=torch.long)])[None])[0,
                                                                                                            -1]
            scores = logits.log_softmax(dim=-1)
            ids.append(int(torch.multinomial(scores.exp(), 1, generator=generator)))
            logprobs.append(float(scores[ids[-1]]))
    return ids, logprobs


def copy_run(warehouse: Warehouse, folder: Path) -> Warehouse:
    """The same run in another folder."""
    shutil.copytree(warehouse.root, folder)
    return open_warehouse(folder)
