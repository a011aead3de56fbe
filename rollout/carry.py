"""Completions that continue in the next iteration: when a rollout ends early, and what it leaves to whom."""

import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from rollout.engines.engine import Engine, Sampling
from rollout.options import RolloutOptions, carry_rule
from rollout.parts import Key, Row, key_of
from rollout.prompts.next_turn import clip, join
from warehouse.ledger.state import TRAIN
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

SAME = (*(field.name for field in fields(Sampling)), "quantization")     # constant within a group


class Ending:
    """Whether a rollout, or a worker's share of it, should end although completions are in flight.

    It never ends before one group is complete: without one, there is nothing to train on. Given are the group
    ids of all completions of open parts, `members`, of those that are `missing`, and of those in parts that
    earlier calls `closed`. `num_before` members were finished by earlier iterations and do not count for this
    one. `settled` groups must be completed: the list of what their parts carry over is already written.
    """

    def __init__(self, rule: str, num_workers: int, members: Sequence[str], missing: Sequence[str],
                 closed: Sequence[str] = (), num_before: int = 0, settled: Collection[str] = ()) -> None:
        (self.amount, self.unit), self.num_workers = carry_rule(rule), num_workers
        self.began, self.left, self.settled = time.perf_counter(), Counter(missing), settled
        self.num_all = len(closed) + len(members) - num_before
        self.num_whole = len(set(closed)) + len(set(members) - self.left.keys())

    def note(self, group_id: str) -> None:
        self.left[group_id] -= 1
        self.num_whole += not self.left[group_id]

    def is_due(self) -> bool:
        num_left = self.left.total()
        if not self.num_whole or not num_left or any(self.left[group] for group in self.settled):
            return False
        if self.unit == "s":
            return time.perf_counter() - self.began >= self.amount
        if self.unit == "groups":
            return self.num_whole >= math.ceil(self.amount / self.num_workers)
        return self.num_all - num_left >= self.amount * self.num_all


def find_waiting(warehouse: Warehouse, options: RolloutOptions, iteration: int,
                 purpose: str) -> tuple[list[Row], int]:
    """What earlier iterations carried over: rows of their plans, and the number of unfinished completions.

    StageError if this rollout would sample them with other settings.
    """
    prompts, num_unfinished = [], 0
    for earlier, groups in (
            warehouse.state.waiting_groups(iteration, own=True) if purpose == TRAIN else {}).items():
        keys: dict[str, Any] = {"iteration": earlier, "purpose": TRAIN}
        _check_same(warehouse.stage("rollout", **keys).settings() or {}, options, earlier)
        planned = {row["group_id"]: row for row in warehouse.read("prompts", **keys).to_pylist()}
        prompts += [planned[group] for group in groups]
        rows = warehouse.read("carried", ["group_id", "finish_reason"], **keys).to_pylist()
        num_unfinished += sum(row["finish_reason"] is None and row["group_id"] in groups for row in rows)
    return prompts, num_unfinished


def _check_same(settings: dict[str, Any], options: RolloutOptions, earlier: int) -> None:
    now = {**vars(options.sampling), "quantization": options.quantization}
    for name in SAME:
        if settings.get(name) != now[name]:
            flag = f"--{name.replace('_', '-')}"
            raise StageError(f"Iteration {earlier} carried over completions that were begun with {flag} "
                             f"{settings.get(name)}, now it is {now[name]}: a group is sampled in one way. "
                             f"Give the former value, with --carry-over 1 if it is to change after that.")


def place_behind(fresh: list[Row], waiting: list[Row], iteration: int) -> list[Row]:
    """Plan rows for waiting groups; their samples are numbered behind the task's fresh groups."""
    ends: dict[str, int] = {}
    for row in fresh:
        ends[row["task_id"]] = max(ends.get(row["task_id"], 0), (row["group_index"] + 1) * row["group_size"])
    placed = []
    for row in waiting:
        index = -(-ends.get(row["task_id"], 0) // row["group_size"])
        ends[row["task_id"]] = (index + 1) * row["group_size"]
        placed.append({**row, "iteration": iteration, "group_index": index})
    return placed


def begun_rows(warehouse: Warehouse, plan: list[Row], iteration: int, purpose: str) -> dict[Key, Row]:
    """Tokens that earlier iterations sampled for groups of a plan, by the keys in this plan.

    Pruned ones are started again: this happens only if a plan is sampled once more after a repair.
    StageError for a discarded plan if another iteration has since taken its completions.
    """
    if purpose == TRAIN:
        warehouse.state.check_not_given_up(iteration, [row["group_id"] for row in plan])
    now, begun = {row["group_id"]: row for row in plan if purpose == TRAIN}, dict[Key, Row]()
    origins = warehouse.state.gone_on_with(iteration, now)
    for earlier in set(origins.values()):
        keys: dict[str, Any] = {"iteration": earlier, "purpose": TRAIN}
        for row in warehouse.read("carried", **keys).to_pylist():
            if origins.get(group := row["group_id"]) == earlier and row["completion_ids"] is not None:
                first, size = now[group]["group_index"] * now[group]["group_size"], now[group]["group_size"]
                row |= {"iteration": iteration, "sample_index": first + row["sample_index"] % size}
                begun[key_of(row)] = row
    return begun


def check_engine(begun: dict[Key, Row], engine: Engine) -> None:
    """StageError if the engine computes in another precision than the engine that began the groups."""
    for dtype in {row["dtype"] for row in begun.values()} - {engine.dtype or None}:
        raise StageError(f"Completions were carried over that an engine in {dtype} began, this one runs in "
                         f"{engine.dtype}: a group is sampled in one way. Give --dtype {dtype}, with "
                         "--carry-over 1 if it is to change after that.")


def segments_by_version(row: Row | None, num_tokens: int, policy_version: int | None) -> list[Row] | None:
    """The column `version_segments` after sampling up to `num_tokens`; None if one policy sampled all."""
    if row is None or not row["completion_ids"]:
        return None
    drawn = len(row["completion_ids"])
    before = row["version_segments"] or [
        {"start": 0, "length": drawn, "policy_version": row["policy_version"]}]
    since = {"start": drawn, "length": num_tokens - drawn, "policy_version": policy_version}
    segments = join(clip([*before, since], num_tokens), by="policy_version")
    return segments if len(segments) > 1 else None
