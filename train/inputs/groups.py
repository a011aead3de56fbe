"""Stored rows become groups: prompts, completions and rewards joined by their keys, checked; no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from warehouse.ledger.state import TRAIN
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import UNTRUNCATED, base_purpose
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import CUT_OFF

TRUNCATION = ("top_p", "top_k", "min_p")
ORIGIN = ("temperature", "dtype", "max_tokens")     # equal within a group
WHOSE = ("policy_version", "policy_sha256", "version_segments")
LISTS = ["completion_ids", "behaviour_logprobs", "support_ids"]
COMPLETION_COLUMNS = ["task_id", "sample_index", "group_id", *LISTS, "finish_reason", "logprobs_mode", *WHOSE,
                      *ORIGIN, *UNTRUNCATED]
PROMPT_COLUMNS = ["task_id", "group_id", "prompt_ids", "group_size", "parent_iteration", "parent_purpose",
                  "parent_sample_index"]
ROUNDING, REWARD_LIMIT = 1e-4, 1e15
SAMPLE_COLUMNS = ["task_id", "sample_index", "reward", "correct"]
Key = tuple[int, str, str, int]         # iteration, purpose, task_id, sample_index
Rewards = dict[tuple[str, int], tuple[float | None, bool | None]]   # and correct, by task_id, sample_index


@dataclass(frozen=True, eq=False)
class Rollout:
    """One completion with the numbers of the engine and the scorer."""

    task_id: str
    sample_index: int
    completion_ids: np.ndarray          # [n] int32; like the logprobs a view of the table, not a copy
    behaviour_logprobs: np.ndarray      # [n] float32, nats; NaN if another model wrote it
    truncated: bool
    reward: float                       # NaN if it could not be measured
    correct: bool
    versions: int | np.ndarray          # policy version of all tokens, or of each [n]
    support: tuple[np.ndarray, np.ndarray] | None = None   # [s] ids kept by truncation, [n] number per token


@dataclass(frozen=True, eq=False)
class Group:
    """Completions of one prompt, by one policy unless some were carried over between iterations."""

    iteration: int
    group_id: str
    prompt_ids: np.ndarray              # [P] int32
    rollouts: tuple[Rollout, ...]
    policy_version: int                 # the oldest that sampled a token
    policies: dict[int, str | None]     # hash of the weights by version; {} for rows of another model
    temperature: float
    dtype: str                          # of the engine
    max_tokens: int | None              # limit on completion tokens; None if the rows do not store it
    purpose: str = "train"
    parent: Key | None = None           # the completion that the prompt continues


def load_groups(warehouse: Warehouse, iteration: int, scorer: str, *, truncated_sampling: str,
                purpose: str = "train", alone: bool = False) -> list[Group]:
    """Groups of one iteration's rows of a purpose, in stored order; StageError for unusable rows.

    `alone` allows groups of one completion, because no advantage is relative to the group. Rows of another
    model have no logprobs, so nothing weighs them and their sampling options do not matter.
    """
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    prompts = warehouse.read("prompts", columns=PROMPT_COLUMNS, **keys)
    completions = warehouse.read("completions", columns=COMPLETION_COLUMNS, **keys)
    samples = warehouse.read("samples", columns=SAMPLE_COLUMNS, scorer=scorer, **keys)
    if base_purpose(purpose) == "train":
        if not alone and min(prompts["group_size"].to_pylist()) < 2:
            raise StageError("A group has 1 completion, so its advantage is 0 whatever its reward. Roll out "
                             "with --group-size 2 or more, after `warehouse discard "
                             f"{shell_quote(warehouse.root)} --iteration {iteration} --purpose {purpose}`, "
                             "or train with --advantages of your own.")
        _refuse_changed_sampling(completions, truncated_sampling)
    rewards = {(row["task_id"], row["sample_index"]): (row["reward"], row["correct"])
               for row in samples.to_pylist()}
    groups = _join(prompts, completions, rewards, scorer, **keys)
    if truncated_sampling == "uncorrected":
        groups = [replace(group, rollouts=tuple(replace(rollout, support=None) for rollout in group.rollouts))
                  for group in groups]
    state, there = warehouse.state, {group.group_id for group in groups}
    if purpose == TRAIN:
        there |= {*state.carried_groups(iteration), *state.taken_groups(iteration)}
    if missing := {*prompts["group_id"].to_pylist()} - there:
        raise _incomplete(min(missing), iteration, "0")
    rollout = state.life("rollout", iteration, purpose)
    shared = rollout.shared if rollout else None
    return groups if shared is None else [      # capped at the last that the run they were sampled in shares
        replace(group, policy_version=min(group.policy_version, shared), rollouts=tuple(
            replace(rollout, versions=np.minimum(rollout.versions, shared)) for rollout in group.rollouts))
        for group in groups]


def groups_of_part(part: Path, prompts: pa.Table, iteration: int, purpose: str) -> list[Group]:
    """The groups of one part of completions, without rewards; greedy ones have temperature 1.

    `prompts` are the PROMPT_COLUMNS of the whole rollout.
    """
    completions = read_parts([part], "completions", COMPLETION_COLUMNS)
    return [replace(group, temperature=group.temperature or 1.0)
            for group in _join(prompts, completions, None, "", iteration=iteration, purpose=purpose)]


def _join(prompts: pa.Table, completions: pa.Table, rewards: Rewards | None, scorer: str, *, iteration: int,
          purpose: str) -> list[Group]:
    planned = {row["group_id"]: row | {"prompt_ids": ids} for row, ids in zip(
        prompts.drop_columns("prompt_ids").to_pylist(), _lists(prompts, "prompt_ids"), strict=True)}
    members: dict[str, list[tuple[dict[str, Any], Rollout]]] = {}
    for row, ids, logprobs, support in zip(
            completions.drop_columns(LISTS).to_pylist(), _lists(completions, "completion_ids"),
            _lists(completions, "behaviour_logprobs"), completions.column("support_ids"), strict=True):
        kept = None if support.values is None else (
            support.values.flatten().to_numpy(), support.values.value_lengths().to_numpy())
        rollout = _rollout(row, ids, logprobs, kept, rewards, scorer, iteration)
        members.setdefault(row["group_id"], []).append((row, rollout))
    groups = []
    for group_id, several in members.items():
        prompt, (rows, rollouts) = planned[group_id], zip(*several, strict=True)
        if len(rows) != prompt["group_size"]:
            raise _incomplete(group_id, iteration, f"{len(rows)} of its {prompt['group_size']}")
        for name in ORIGIN:
            if len(values := {row[name] for row in rows}) > 1:
                raise StageError(f"Group {group_id} mixes {name} {sorted(values, key=str)}: a group is "
                                 "completions of one prompt, sampled in one way. Run the rollout of this "
                                 "iteration again.")
        policies = _policies(rows, group_id, iteration)
        shared = {name: rows[0][name] for name in ORIGIN}
        if not policies:        # completions of another model have no staleness
            shared["temperature"] = 1.0
        versions = [int(np.min(rollout.versions)) for rollout in rollouts if len(rollout.completion_ids)]
        parent = None if prompt["parent_iteration"] is None else (
            prompt["parent_iteration"], prompt["parent_purpose"], prompt["task_id"],
            prompt["parent_sample_index"])
        groups.append(Group(iteration, group_id, prompt["prompt_ids"], rollouts,
                            min(versions, default=iteration), policies, **shared, purpose=purpose,
                            parent=parent))
    return groups


def _incomplete(group_id: str, iteration: int, found: str) -> StageError:
    return StageError(f"Group {group_id} of iteration {iteration} has {found} completions, and without the "
                      "others advantages are wrong. Run `warehouse check` on the run folder, and roll the "
                      "iteration out again.")


def _policies(rows: Sequence[dict[str, Any]], group_id: str, iteration: int) -> dict[int, str | None]:
    """The weight hash of every policy that finished one of the completions; {} for rows of another model.

    Only groups that an earlier iteration began have several.
    """
    policies = {(row["policy_version"], row["policy_sha256"]) for row in rows}
    versions = sorted({version for version, _ in policies if version is not None})
    if len(policies) > (len(versions) if not group_id.startswith(f"{iteration}/") else 1):
        raise StageError(f"Group {group_id} mixes policy_version {versions}: a group is completions of one "
                         "prompt from one policy, unless it was carried over. Run the rollout of this "
                         "iteration again.")
    return {version: sha256 for version, sha256 in policies if version is not None}


def _rollout(row: dict[str, Any], completion_ids: np.ndarray, logprobs: np.ndarray,
             support: tuple[np.ndarray, np.ndarray] | None, rewards: Rewards | None, scorer: str,
             iteration: int) -> Rollout:
    key, version, length = (row["task_id"], row["sample_index"]), row["policy_version"], len(completion_ids)
    name = f"Completion {key[1]} of task {key[0]}, iteration {iteration},"
    if version is None:
        logprobs = np.broadcast_to(np.float32(np.nan), length)
    elif len(logprobs) != length:
        raise StageError(f"{name} has {length} tokens but {len(logprobs)} behaviour logprobs. Sample it "
                         "again with logprobs; a missing one is not treated as a ratio of 1.")
    elif not np.isfinite(logprobs).all() or (logprobs > ROUNDING).any():
        raise StageError(f"{name} has a behaviour logprob that is not a finite number, or above 0. "
                         "The engine that sampled it is at fault: run the rollout of this iteration again.")
    if support is not None and (support[1].shape != completion_ids.shape or not support[1].all()):
        raise StageError(f"{name} has {length} tokens, but support_ids of {np.count_nonzero(support[1])}. "
                         "Run `warehouse check` on the run folder.")
    if rewards is not None and key not in rewards:
        raise StageError(f"{name} has no row of scorer {scorer}: the iteration is scored in part. "
                         f"Run `score` on iteration {iteration} again.")
    reward, correct = rewards[key] if rewards else (None, None)
    if abs(reward or 0) > REWARD_LIMIT:
        raise StageError(f"{name} has reward {reward:g}, which overflows float32. Fix the reward and "
                         f"`score` iteration {iteration} again; use null for what could not be measured.")
    versions = iteration if version is None else version
    if row["version_segments"]:
        versions = np.concatenate([np.full(each["length"], each["policy_version"])
                                   for each in row["version_segments"]])
    return Rollout(*key, completion_ids, logprobs, row["finish_reason"] in CUT_OFF,
                   math.nan if reward is None else reward, bool(correct), versions, support)


def _lists(table: pa.Table, column: str) -> list[np.ndarray]:
    """A list column as one array per row, without a Python object per token; null becomes an empty array."""
    arrays: list[np.ndarray] = []
    for chunk in table.column(column).chunks:
        lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        arrays += np.split(chunk.flatten().to_numpy(zero_copy_only=False), np.cumsum(lengths))[:-1]
    return arrays


def _refuse_changed_sampling(completions: pa.Table, truncated_sampling: str) -> None:
    for name, neutral in UNTRUNCATED.items():
        corrected = name in TRUNCATION and not completions["support_ids"].null_count
        other = {value for value in completions.column(name).unique().to_pylist() if value != neutral}
        if other and not corrected and truncated_sampling == "refuse":
            is_left_out = max(completions["top_k"].to_pylist()) in range(1, 65)
            or_top_k = ("" if name not in TRUNCATION else ", or import them with their support_ids"
                        if is_left_out else ", or add --top-k of 64 or less")
            raise StageError(f"The rows were sampled with {name} = {min(other):g}, so the stored logprobs "
                             "are not of the model's own distribution and every ratio is biased. Roll out "
                             f"with {name} = {neutral:g}{or_top_k}, or accept the bias with "
                             "--truncated-sampling uncorrected.")
    modes = set(completions.column("logprobs_mode").unique().to_pylist())
    hot = {value for value in completions.column("temperature").unique().to_pylist() if value != 1.0}
    if hot and modes - {"processed_logprobs"}:
        raise StageError(f"The rows were sampled at temperature {min(hot):g}, and logprobs of mode "
                         f"{', '.join(map(str, modes))} are not those at this temperature. Roll out with "
                         "processed_logprobs.")
    if min(completions.column("temperature").to_pylist()) <= 0:
        raise StageError("The rows were sampled greedily (temperature 0): such a policy has no gradient. "
                         "Roll out with a temperature above 0.")
