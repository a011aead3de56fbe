"""Which models compute logprobs, policies of the run or others, and for which rows; no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from train.inputs.groups import Group
from warehouse.ledger.state import Life
from warehouse.sql.vocabulary import load_tokenizer
from warehouse.stages.base_model import find_model
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import is_of
from warehouse.store.run_folder import Warehouse


class Model(NamedTuple):
    """A model that computes logprobs: its name in rows, its policy version in the run, its other location."""

    name: str
    sha256: str
    policy_version: int | None = None
    source: str = ""
    revision: str | None = None


def model_of_policy(warehouse: Warehouse, version: int) -> Model:
    """A policy of the run; StageError if it does not exist or its weights are gone."""
    warehouse.verify_policy(version, unread=[OPTIMIZER])
    return Model(f"policy-{version}", warehouse.policy(version)["sha256"], version)


def model_of_folder(warehouse: Warehouse, path: str) -> Model:
    """A model folder or hub id; StageError if it does not exist or has another tokenizer."""
    found = find_model(path, warehouse.root)
    source = str(warehouse.root / found.stored_path) if Path(path).is_dir() else path
    if found.tokenizer_sha256 != warehouse.facts["tokenizer_sha256"]:
        files = [Path(folder) / "tokenizer.json" for folder in (warehouse.model, source)]
        ours, theirs = (load_tokenizer(file).get_vocab(with_added_tokens=True) if file.exists() else object()
                        for file in files)
        if ours != theirs:
            raise StageError(f"{path} has another tokenizer than {warehouse.model}: the run stores "
                             "token ids. Name a model with the vocabulary of the run's base.")
    return Model(f"{Path(found.stored_path).name}-{found.sha256[:8]}", found.sha256, None, source,
                 found.revision)


def rollouts_to_ask_about(warehouse: Warehouse, iterations: Sequence[int], purpose: str) -> list[Life]:
    """Complete rollouts with tokens, of these iterations, or of all; StageError if there are none."""
    lives = [life for life in warehouse.state.of_stage("rollout")
             if is_of(str(life.purpose), purpose) and (not iterations or life.iteration in iterations)
             and life.is_complete and not life.pruned]
    if not lives:
        raise StageError(f"There is no complete rollout of purpose {purpose} with tokens in the iterations "
                         f"named. `warehouse summary {shell_quote(warehouse.root)}` lists what there is.")
    return lives


def rollouts_of(warehouse: Warehouse, groups: Sequence[Group]) -> list[Life]:
    lives = [warehouse.state.life("rollout", *key)
             for key in dict.fromkeys((group.iteration, group.purpose) for group in groups)]
    return [life for life in lives if life]


def teacher_advantages(warehouse: Warehouse, groups: Sequence[Group], teacher: str) -> list[np.ndarray]:
    """log p_teacher - log mu of every token of every completion, from the rows of `train logprobs`.

    With it, a policy gradient descends the reverse KL(policy, teacher) on the policy's own completions.
    """
    said = dict[tuple[Any, ...], Any]()
    for life in rollouts_of(warehouse, groups):
        rows = warehouse.read("policy_logprobs", ["task_id", "sample_index", "logprobs"], **life.identity,
                              scorer=teacher)
        said |= {(life.iteration, life.purpose, task_id, index): logprobs for task_id, index, logprobs in
                 zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)}
    return [np.array(said[group.iteration, group.purpose, rollout.task_id, rollout.sample_index], np.float64)
            - rollout.behaviour_logprobs for group in groups for rollout in group.rollouts]
