"""Sample what is missing of a rollout's parts, and write each part when it is complete."""

import platform
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from rollout.carry import Ending, segments_by_version
from rollout.engines.engine import Engine, Request, Sampled
from rollout.job import Job
from rollout.parts import Key, Member, Part, Row, Spill
from rollout.prompts.plan import seed_of
from warehouse.stages.clock import Clock, bar_options
from warehouse.stages.space import check_space
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.commit import ensure_local
from warehouse.store.errors import first_line
from warehouse.store.parts import part_number, read_parts
from warehouse.store.schema import arrow_schema


def sample_parts(job: Job, engine: Engine, parts: list[Part], stop: StopRequest, *, begun: dict[Key, Row],
                 closed: list[str] | None = None) -> tuple[float, int]:
    """Sample all parts in one engine run and write each as soon as it is complete.

    Returns the seconds spent writing and the tokens sampled by this call. Finished completions of open parts
    are spilled every --spill-seconds, when the engine fails, and when `stop` is due: then StageStopped is
    raised. Completions in `begun` are continued. With `closed`, group ids of the parts from earlier calls,
    --carry-over decides when the rest is carried over.
    """
    sampling, keys = job.options.sampling, job.keys
    constants = {**keys, **asdict(sampling), "policy_version": job.policy["policy_version"],
                 "policy_sha256": job.policy["sha256"], "logprobs_mode": engine.logprobs_mode or None,
                 "engine": f"{engine.engine} ({job.serve})" if job.serve else engine.engine,
                 "dtype": engine.dtype or None, "device": engine.device or None}
    under_way = OpenParts(job, parts, constants, begun, closed)
    ending = under_way.ending
    over = [ending.is_due] if ending else []
    results = _and_its_failure(engine.sample(under_way.requests(), sampling, *over), stop)
    saved, num_all = time.perf_counter(), len(under_way.members)
    with closing(results), tqdm(total=num_all, initial=under_way.num_kept, unit="completion",
                                desc=f"rollout {job.iteration} {job.purpose}",
                                **bar_options()) as progress:
        for part in parts:
            under_way.write_if_whole(part)
        for sampled in results:
            if isinstance(sampled, Sampled | Request):
                under_way.add(sampled)
            if isinstance(sampled, Request):
                continue
            progress.update(isinstance(sampled, Sampled))
            failure = sampled if isinstance(sampled, Exception) else None
            if failure or stop.due() or time.perf_counter() - saved > job.options.spill_seconds:
                job.warehouse.check_live("rollout", **keys)
                under_way.save()
                check_space(job.warehouse.root, 0, f"rollout of iteration {job.iteration}")
                saved = time.perf_counter()
            if (failure or stop.due()) and under_way.num_kept < num_all:
                raise _reason_to_end(failure, stop, f"{under_way.num_kept} of {num_all} completions")
    if under_way.num_kept < num_all:
        assert ending and ending.is_due(), "the engine ended with completions missing"
        under_way.carry_over()
    return under_way.clock.seconds.get("writing", 0.0), under_way.num_tokens


class OpenParts:
    """The open parts: their finished completions and the tokens so far; each is written once complete."""

    def __init__(self, job: Job, parts: list[Part], constants: dict[str, Any], begun: dict[Key, Row],
                 closed: list[str] | None) -> None:
        self.warehouse, self.parts, self.keys, self.constants = job.warehouse, parts, job.keys, constants
        same = {name: constants[name] for name in ("policy_sha256", "dtype", "engine")}
        self.spills = {part.number: Spill(job.warehouse.part_path("completions", part.number, **job.keys),
                                          [member.key for member in part.members], same, begun)
                       for part in parts}
        self.members = [(part, member) for part in parts for member in part.members]
        self.missing = [index for index, (part, member) in enumerate(self.members)
                        if member.key not in self.spills[part.number].rows]
        self.num_kept = len(self.members) - len(self.missing)  # not the bar's count: TQDM_DISABLE stops it
        self.ending, self.num_tokens, self.clock = None, 0, Clock()
        if closed is not None and job.options.carry_over:
            groups = [member.prompt["group_id"] for _, member in self.members]
            before = sum(begun[member.key]["finish_reason"] is not None for _, member in self.members
                         if member.key in begun)
            self.ending = Ending(
                job.options.carry_over, job.options.shard.count, groups,
                [groups[index] for index in self.missing], closed, before,
                {groups[index] for index in self.missing if self.members[index][0].decided})

    def requests(self) -> Iterator[Request]:
        for index in self.missing:
            part, member = self.members[index]
            yield _request(index, member, self.spills[part.number].drawn.get(member.key))

    def add(self, sampled: Sampled | Request) -> None:
        """Add a finished completion, which may complete its part, or an unfinished one with its tokens."""
        part, member = self.members[sampled.index]
        drawn = self.spills[part.number].drawn.get(member.key)
        row = _completion_row(member, sampled, self.constants, drawn)
        self.spills[part.number].add(row)
        self.num_tokens += row["num_completion_tokens"] - (drawn["num_completion_tokens"] if drawn else 0)
        if isinstance(sampled, Sampled):
            if self.ending:
                self.ending.note(member.prompt["group_id"])
            self.num_kept += 1
            self.write_if_whole(part)

    def write_if_whole(self, part: Part) -> None:
        if self._is_whole(part):
            with self.clock.phase("writing"):
                self._write(self._decide(part, []) if self.ending and not part.decided else part)

    def save(self) -> None:
        """Save all finished completions and tokens of all parts: a kill from here on loses no token."""
        with self.clock.phase("writing"):
            for spill in self.spills.values():
                spill.save()

    def carry_over(self) -> None:
        """Write the incomplete groups for the next iteration, and each part with the complete ones."""
        self.save()
        for part in self.parts:
            spill = self.spills[part.number]
            if part.decided or spill.part.exists():
                continue
            left = {member.prompt["group_id"] for member in part.members if member.key not in spill.rows}
            rows = [spill.rows.get(member.key) or spill.drawn.get(member.key)
                    or _completion_row(member, _request(0, member, None), self.constants, None)
                    for member in part.members if member.prompt["group_id"] in left]
            with self.clock.phase("writing"):
                part = self._decide(part, rows)
                if self._is_whole(part):        # not if another worker decided otherwise
                    self._write(part)

    def _is_whole(self, part: Part) -> bool:
        rows = self.spills[part.number].rows
        return len(rows) >= len(part.members) and all(member.key in rows for member in part.members)

    def _decide(self, part: Part, rows: list[Row]) -> Part:
        """Settle which groups of a part are carried over, by a file of the first worker; return the others.

        Without the file, one worker could write the part with a group that another carries over.
        """
        table = pa.Table.from_pylist(rows, arrow_schema("carried"))
        self.warehouse.write_part("carried", part.number, table, **self.keys)
        files = [file for file in self.warehouse.parts("carried", **self.keys)
                 if part_number(file) == part.number]
        ensure_local(files)
        return part.without(set(read_parts(files, "carried", ["group_id"])["group_id"].to_pylist()))

    def _write(self, part: Part) -> None:
        rows = [self.spills[part.number].rows[member.key] for member in part.members]
        table = pa.Table.from_pylist(rows, schema=arrow_schema("completions"))
        self.warehouse.write_part("completions", part.number, table, **self.keys)
        self.spills[part.number].remove()


def _and_its_failure(sampled: Iterator[Sampled | Request | None],
                     stop: StopRequest) -> Generator[Sampled | Request | Exception | None, None, None]:
    """The engine's results, then its failure, so that results are saved first; None if the stop is due."""
    if stop.due():
        yield None
    try:
        yield from sampled
    except Exception as error:
        yield error


def _reason_to_end(failure: Exception | None, stop: StopRequest, kept: str) -> Exception:
    """StageStopped after a request to stop, with the engine's failure if it failed; else that failure."""
    if failure and not stop.asked():
        return failure
    failed = f" The engine failed meanwhile: {first_line(failure)}." if failure else ""
    stopped = StageStopped(f"Stopped because {stop.reason}, with {kept} kept.{failed} Run the same command "
                           "again to continue.")
    stopped.__cause__ = failure
    return stopped


def _request(index: int, member: Member, drawn: Row | None) -> Request:
    prompt, sample = member
    so_far = (drawn["completion_ids"], drawn["behaviour_logprobs"]) if drawn else ()
    return Request(index, prompt["prompt_ids"], drawn["seed"] if drawn else _completion_seed(prompt, sample),
                   prompt.get("messages") or "", sample, *so_far)


def _completion_row(member: Member, sampled: Sampled | Request, constants: dict[str, Any],
                    drawn: Row | None) -> Row:
    prompt, sample = member
    row = {**constants, "task_id": prompt["task_id"], "sample_index": sample, "group_id": prompt["group_id"],
           "num_prompt_tokens": prompt["num_prompt_tokens"],
           "seed": drawn["seed"] if drawn else _completion_seed(prompt, sample)}
    if isinstance(sampled, Request):
        if drawn and len(sampled.drawn_ids) == len(drawn["completion_ids"]):
            return drawn        # no new tokens
        ids, row = sampled.drawn_ids, row | {"behaviour_logprobs": sampled.drawn_logprobs,
                                             "host": platform.node(), "finish_reason": None}
    else:
        ids, row = sampled.completion_ids, row | {
            "completion": sampled.completion, "behaviour_logprobs": sampled.logprobs,
            "support_ids": sampled.support,
            "host": sampled.host or platform.node(), "finish_reason": sampled.finish_reason,
            "finished_at": datetime.now(UTC)}
    return row | {"completion_ids": ids, "num_completion_tokens": len(ids),
                  "version_segments": segments_by_version(drawn, len(ids), row["policy_version"])}


def _completion_seed(prompt: dict[str, Any], sample: int) -> int:
    return seed_of(prompt["seed"], "completion", sample)
