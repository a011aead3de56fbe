"""Stored rows become groups: prompts, completions and rewards joined by their keys, checked; no torch."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.ledger.state import TRAIN
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import UNTRUNCATED, base_purpose
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import CUT_OFF

TRUNCATION = ("top_p", "top_k", "min_p")
ORIGIN = ("temperature", "dtype", "max_tokens")     # equal within a group
WHOSE = ("policy_version", "policy_sha256", "version_segments")
COMPLETION_COLUMNS = ["task_id", "sample_index", "group_id", "completion_ids", "behaviour_logprobs",
                      "support_ids", "finish_reason", "logprobs_mode", *WHOSE, *ORIGIN, *UNTRUNCATED]
PROMPT_COLUMNS = ["task_id", "group_id", "prompt_ids", "group_size", "parent_iteration", "parent_purpose",
                  "parent_sample_index"]
ROUNDING, REWARD_LIMIT = 1e-4, 1e15
SAMPLE_COLUMNS = ["task_id", "sample_index", "reward", "correct"]
Key = tuple[int, str, str, int]         # iteration, purpose, task_id, sample_index
Rewards = dict[tuple[str, int], tuple[float, bool]]     # reward and correct, by task_id and sample_index


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

    `alone` allows groups of one completion, because no advantage is relative to the group.

    Rows of another model have no logprobs, so nothing weighs them and their sampling options do not matter.
    """
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    prompts = warehouse.read("prompts", columns=PROMPT_COLUMNS, **keys)
    completions = warehouse.read("completions", columns=COMPLETION_COLUMNS, **keys)
    samples = warehouse.read("samples", columns=SAMPLE_COLUMNS, scorer=scorer, **keys)
    if not len(completions):
        raise StageError(f"Iteration {iteration} has no completions of purpose {purpose}. Run "
                         f"`rollout {shell_quote(warehouse.root)} --iteration {iteration}` with "
                         f"tasks to train on.")
    if base_purpose(purpose) == "train":
        if not alone and min(prompts["group_size"].to_pylist()) < 2:
            raise StageError("A group has 1 completion, so its advantage is 0 whatever its reward. Roll out "
                             f"with --group-size 2 or more, after `warehouse discard "
                             f"{shell_quote(warehouse.root)} "
                             f"--iteration {iteration} --purpose {purpose}`, or train with --advantages of "
                             "your own.")
        _refuse_changed_sampling(completions, truncated_sampling)
    if truncated_sampling == "uncorrected":
        none = pa.nulls(len(completions), completions["support_ids"].type)
        completions = completions.drop_columns("support_ids").append_column("support_ids", none)
    missing = set(prompts["group_id"].to_pylist()) - set(completions["group_id"].to_pylist())
    if missing and purpose == TRAIN:
        state = warehouse.state
        elsewhere = {*state.carried_groups(iteration), *state.taken_groups(iteration)}
        left = pa.array(elsewhere, pa.string())
        prompts = prompts.filter(pc.invert(pc.is_in(prompts["group_id"], left)))
    groups = _join(iteration, purpose, prompts, completions, _rewards(samples), scorer)
    rollout = warehouse.state.life("rollout", iteration, purpose)
    shared = rollout.shared if rollout else None
    return groups if shared is None else [_since_shared(group, shared) for group in groups]


def _since_shared(group: Group, shared: int) -> Group:
    """The same group, with its version capped at the last policy shared with the run it was sampled in."""
    rollouts = tuple(replace(rollout, versions=np.minimum(rollout.versions, shared))
                     for rollout in group.rollouts)
    return replace(group, rollouts=rollouts, policy_version=min(group.policy_version, shared))


def groups_of_part(part: Path, prompts: pa.Table, iteration: int, purpose: str) -> list[Group]:
    """The groups of one part of completions, without rewards; greedy ones have temperature 1.

    `prompts` are the PROMPT_COLUMNS of the whole rollout.
    """
    completions = read_parts([part], "completions", COMPLETION_COLUMNS)
    own = prompts.filter(pc.is_in(prompts["group_id"], completions["group_id"].combine_chunks()))
    return [replace(group, temperature=group.temperature or 1.0)
            for group in _join(iteration, purpose, own, completions, None, "")]


def _join(iteration: int, purpose: str, prompts: pa.Table, completions: pa.Table,
          rewards: Rewards | None, scorer: str) -> list[Group]:
    ids, logprobs = _lists(completions, "completion_ids"), _lists(completions, "behaviour_logprobs")
    supports = _supports(completions)
    columns = {name: completions.column(name).to_pylist() for name in
               ("task_id", "sample_index", "group_id", "finish_reason", *WHOSE, *ORIGIN)}
    members: dict[str, list[int]] = {}
    for row, group_id in enumerate(columns["group_id"]):
        members.setdefault(group_id, []).append(row)
    prompt_ids, sizes, parents = (
        dict(zip(prompts.column("group_id").to_pylist(), values, strict=True)) for values in
        (_lists(prompts, "prompt_ids"), prompts.column("group_size").to_pylist(), _parents(prompts)))
    groups = []
    for group_id in [*members, *(prompt_ids.keys() - members.keys())]:
        rows = members.get(group_id, [])
        if group_id not in prompt_ids:
            raise StageError(f"Group {group_id} of iteration {iteration} has completions but no prompt. "
                             "Run `warehouse check` on the run folder.")
        if len(rows) != sizes[group_id]:
            raise StageError(f"Group {group_id} of iteration {iteration} has {len(rows)} of its "
                             f"{sizes[group_id]} completions, and without the others advantages are wrong. "
                             "Run `warehouse check` on the run folder, and roll the iteration out again.")
        origin = {name: {columns[name][row] for row in rows} for name in ORIGIN}
        for name, values in origin.items():
            if len(values) > 1:
                raise StageError(f"Group {group_id} mixes {name} {sorted(values, key=str)}: a group is "
                                 "completions of one prompt, sampled in one way. Run the rollout of this "
                                 "iteration again.")
        policies = _policies(columns, rows, group_id, iteration)
        rollouts = tuple(_rollout(columns, row, ids[row], logprobs[row], supports[row], rewards, iteration,
                                  scorer) for row in rows)
        shared: dict[str, Any] = {name: values.pop() for name, values in origin.items()}
        versions = [int(np.min(rollout.versions)) for rollout in rollouts if len(rollout.completion_ids)]
        shared |= {"policy_version": min(versions, default=iteration), "policies": policies}
        if not policies:        # completions of another model have no staleness
            shared["temperature"] = 1.0
        groups.append(Group(iteration, group_id, prompt_ids[group_id], rollouts, **shared, purpose=purpose,
                            parent=parents[group_id]))
    return groups


def _policies(columns: dict[str, list], rows: list[int], group_id: str,
              iteration: int) -> dict[int, str | None]:
    """The weight hash of every policy that finished one of the completions; {} for rows of another model.

    Only groups that an earlier iteration began have several.
    """
    policies = {(columns["policy_version"][row], columns["policy_sha256"][row]) for row in rows}
    versions = sorted({version for version, _ in policies if version is not None})
    if len(policies) > (len(versions) if not group_id.startswith(f"{iteration}/") else 1):
        raise StageError(f"Group {group_id} mixes policy_version {versions}: a group is completions of one "
                         "prompt from one policy, unless it was carried over. Run the rollout of this "
                         "iteration again.")
    return {version: sha256 for version, sha256 in policies if version is not None}


def _parents(prompts: pa.Table) -> list[Key | None]:
    """For each prompt, the completion that it continues."""
    columns = [prompts.column(name).to_pylist() for name in
               ("parent_iteration", "parent_purpose", "task_id", "parent_sample_index")]
    return [None if key[0] is None else key for key in zip(*columns, strict=True)]


def _rollout(columns: dict[str, list], row: int, completion_ids: np.ndarray, logprobs: np.ndarray,
             support: tuple[np.ndarray, np.ndarray] | None,
             rewards: Rewards | None, iteration: int, scorer: str) -> Rollout:
    task_id, sample_index = columns["task_id"][row], columns["sample_index"][row]
    version, length = columns["policy_version"][row], len(completion_ids)
    name = f"Completion {sample_index} of task {task_id}, iteration {iteration},"
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
    if rewards is not None and (task_id, sample_index) not in rewards:
        raise StageError(f"{name} has no row of scorer {scorer}: the iteration is scored in part. "
                         f"Run `score` on iteration {iteration} again.")
    reward, correct = (math.nan, False) if rewards is None else rewards[task_id, sample_index]
    if abs(reward) > REWARD_LIMIT:
        raise StageError(f"{name} has reward {reward:g}, which overflows float32. Fix the reward and "
                         f"`score` iteration {iteration} again; use null for what could not be measured.")
    versions = iteration if version is None else version
    if segments := columns["version_segments"][row]:
        versions = np.concatenate([np.full(each["length"], each["policy_version"]) for each in segments])
        if len(versions) != length:
            raise StageError(f"{name} has {length} tokens, but its version_segments cover "
                             f"{len(versions)}. Run `warehouse check` on the run folder.")
    return Rollout(task_id, sample_index, completion_ids, logprobs, columns["finish_reason"][row] in CUT_OFF,
                   reward, correct, versions, support)


def _rewards(samples: pa.Table) -> Rewards:
    columns = [samples.column(name).to_pylist() for name in SAMPLE_COLUMNS]
    return {(task_id, index): (math.nan if reward is None else reward, bool(correct))
            for task_id, index, reward, correct in zip(*columns, strict=True)}


def _lists(table: pa.Table, column: str) -> list[np.ndarray]:
    """A list column as one array per row, without a Python object per token; null becomes an empty array."""
    arrays = []
    for chunk in table.column(column).chunks:
        values, offsets = chunk.flatten().to_numpy(zero_copy_only=False), np.zeros(len(chunk) + 1, np.int64)
        lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        np.cumsum(lengths, out=offsets[1:])
        arrays += [values[start:stop] for start, stop in itertools.pairwise(offsets)]
    return arrays


def _supports(completions: pa.Table) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """For each completion the ids kept by truncation, concatenated over its tokens; their number per token.

    None if nothing is stored.
    """
    stored = (row.values for row in completions.column("support_ids"))
    return [None if lists is None else (lists.flatten().to_numpy(), lists.value_lengths().to_numpy())
            for lists in stored]


def _refuse_changed_sampling(completions: pa.Table, truncated_sampling: str) -> None:
    for name, neutral in UNTRUNCATED.items():
        corrected = name in TRUNCATION and not completions["support_ids"].null_count
        other = {value for value in completions.column(name).unique().to_pylist() if value != neutral}
        if other and not corrected and truncated_sampling == "refuse":
            or_top_k = ", or add --top-k of 64 or less" if name in TRUNCATION else ""
            raise StageError(f"The rows were sampled with {name} = {min(other):g}, so the stored logprobs "
                             "are not of the model's own distribution and every ratio is biased. Roll out "
                             f"with {name} = {neutral:g}{or_top_k}, or accept the bias with "
                             "--truncated-sampling uncorrected.")
    modes = set(completions.column("logprobs_mode").unique().to_pylist())
    hot = {value for value in completions.column("temperature").unique().to_pylist() if value != 1.0}
    if hot and modes - {"processed_logprobs"}:
        raise StageError(f"The rows were sampled at temperature {min(hot):g} but their logprobs are "
                         f"{sorted(modes)}, taken before it. Roll out with processed_logprobs.")
    if min(completions.column("temperature").to_pylist()) <= 0:
        raise StageError("The rows were sampled greedily (temperature 0): such a policy has no gradient. "
                         "Roll out with a temperature above 0.")
