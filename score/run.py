"""The stage `score`: completions in, one samples part per completions part out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from score.progress import Progress
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.outcomes import Outcome
from score.sandbox.pool import usable_cores
from score.sandbox.tiers import Tier, open_lanes
from score.summary import summary_lines
from score.verdicts.completions import Questions
from score.verdicts.golden import check_golden
from score.verdicts.judge import measure, reward_terms, run_programs
from score.verdicts.samples import repetition_columns, samples_table
from score.wire.error_classes import ErrorClass
from warehouse.stages.clock import Clock
from warehouse.stages.due import rollouts_to_score
from warehouse.stages.shard import Shard
from warehouse.stages.space import check_space
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError
from warehouse.store.parts import part_number, read_part, stored_bytes
from warehouse.store.run_folder import Warehouse, open_warehouse

# More rows than this share that infrastructure failed for are a broken machine, not bad luck.
MAX_UNSCORED_SHARE = 0.01


@dataclass(frozen=True)
class ScoreOptions:
    """What the command was asked for; nothing here changes a verdict but the scorer."""

    run: Path
    scorer: Scorer
    iteration: int | None = None
    purpose: str | None = None
    lanes: int | None = None             # None: one per usable core
    tier: str | None = None              # None: the best there is
    preload: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = ()
    unsafe: bool = False
    shard: Shard = field(default_factory=Shard)
    time_limit: float | None = None      # seconds
    grace: float = 0.0                   # seconds for the part in hand after a signal


def run_score(options: ScoreOptions, say: Callable[[str], None]) -> None:
    """Score every rollout that is due; what was done is told to `say`."""
    warehouse, stop = open_warehouse(options.run), StopRequest(options.time_limit, options.grace)
    due = rollouts_to_score(warehouse, options.scorer.identity, options.iteration, options.purpose)
    if not due:
        say(f"Nothing to score: {options.scorer.identity} has scored every complete rollout of "
            f"{options.run}.")
        return
    clock = Clock()
    with clock.phase("start"):
        pool, tier = open_lanes(options.tier, unsafe=options.unsafe, limits=options.scorer.limits,
                                num_lanes=options.lanes or usable_cores(),
                                config=lambda layers: LaneConfig(layers, options.scorer.imports,
                                                                 options.preload, options.import_paths))
    say(f"scorer {options.scorer.identity}, sandbox tier {tier.name}: {tier.words}")
    unfinished = []
    with stop, pool:
        executor = Executor(pool, isolated=tier.isolated)
        for iteration, purpose in due:
            complete = score_rollout(warehouse, iteration, purpose, options, executor, tier, clock, say, stop)
            if not complete:
                unfinished.append(f"{iteration} ({purpose})")
            clock = Clock()                     # what the lanes took to start counts once
    if unfinished:
        raise StageStopped(f"The rollout of iteration {', '.join(unfinished)} is still under way: its "
                           "complete parts are scored. Run `score` again once it is done.")


def score_rollout(warehouse: Warehouse, iteration: int, purpose: str, options: ScoreOptions,
                  executor: Executor, tier: Tier, clock: Clock, say: Callable[[str], None],
                  stop: StopRequest) -> bool:
    """Score one rollout part by part, those that stand are kept; False if the rollout is still under way.

    Raises StageStopped after the part in hand when told to stop, and without that part when `stop` is due.
    """
    scorer = options.scorer
    stage = warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer.identity)
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    with clock.phase("reading"):
        questions = Questions(warehouse, iteration, purpose)
    with clock.phase("start"):
        num_golden = check_golden(executor, scorer, questions.kind_names())
    complete = warehouse.stage("rollout", **keys).is_complete()  # asked before the parts are listed
    done = {part_number(path) for path in warehouse.parts("samples", **keys, scorer=scorer.identity)}
    parts = warehouse.parts("completions", **keys)
    check_alike(stage.title, done, parts)
    # A row of samples is smaller than the completion it is about.
    check_space(warehouse.root, stored_bytes(parts), stage.title)
    num_run = executor.num_run
    with Progress(f"score {iteration} {purpose}", num_parts=len(parts), num_done=len(done)) as progress:
        for path in parts:
            if part_number(path) in done or not options.shard.holds(part_number(path)):
                continue
            check_stop(stop, progress)
            check_space(warehouse.root, stored_bytes([path]), stage.title)
            table = score_part(path, questions, scorer, executor, tier, clock, progress, stop)
            with clock.phase("writing"):
                stage.settle(scorer.settings)           # not before there is something to write
                warehouse.write_part("samples", part_number(path), table, **keys, scorer=scorer.identity)
            progress.wrote_part()
    if not complete:
        return False
    missing = len(parts) - len(warehouse.parts("samples", **keys, scorer=scorer.identity))
    if missing:
        say(f"shard {options.shard} of iteration {iteration} {purpose} is done; {missing} parts are left to "
            "the other shards")
        return True
    samples = warehouse.read("samples", **keys, scorer=scorer.identity)
    stage.settle(scorer.settings)
    stage.complete({"completions": samples.num_rows, "programs_run": executor.num_run - num_run,
                    "unscored": samples.column("reward").null_count, "golden": num_golden, "tier": tier.name,
                    "tier_facts": tier.facts, "lanes": len(executor.pool.lanes),
                    "lane_restarts": executor.pool.num_restarts,
                    "seconds": {name: round(value, 3) for name, value in clock.seconds.items()}},
                   [part_number(path) for path in parts])
    for line in summary_lines(samples, iteration, purpose, clock.seconds, executor.num_run - num_run):
        say(line)
    return True


def score_part(path: Path, questions: Questions, scorer: Scorer, executor: Executor, tier: Tier, clock: Clock,
               progress: Progress, stop: StopRequest) -> pa.Table:
    """The rows of samples for one part of completions."""
    def ran(outcome: Outcome) -> None:
        progress.ran(outcome)
        check_stop(stop, progress, path)

    with clock.phase("reading"):
        completions = read_part(path)
        items = questions.items(completions)
    with clock.phase("running"):
        outcomes = run_programs(executor, items, ran)
    stop_when_broken(outcomes, path)
    with clock.phase("metrics"):
        repetitions = repetition_columns(completions)
        judgements = measure(items, outcomes)
        terms = reward_terms(items, judgements, scorer, completions, repetitions["ngram4_unique_ratio"])
        return samples_table(completions, items, judgements, terms, scorer, tier.name, repetitions)


def check_stop(stop: StopRequest, progress: Progress, part: Path | None = None) -> None:
    """StageStopped when told to stop: between parts at once, inside `part` when the grace is over."""
    if stop.due() if part else stop.asked():
        dropped = f" and {part.name} dropped" if part else ""
        raise StageStopped(f"Stopped because {stop.reason}, with {progress.num_done} of {progress.num_parts} "
                           f"parts scored{dropped}. Run the same command again to go on.")


def check_alike(title: str, done: set[int], parts: list[Path]) -> None:
    """StageError if a part of samples scores none of the completions' parts: they were merged or replaced."""
    for number in sorted(done - {part_number(path) for path in parts}):
        raise StageError(f"Part {number} of {title} belongs to no part of the completions any more. Run "
                         "`warehouse repair` to put it aside, then `score` again.")


def stop_when_broken(found: list[list[Outcome]], path: Path) -> None:
    """StageError when infrastructure failed for more than a few programs of a part."""
    outcomes = [outcome for each in found for outcome in each]
    failed = [outcome for outcome in outcomes
              if outcome.infrastructure and outcome.error_class != ErrorClass.UNTESTABLE]
    if len(failed) > max(1, MAX_UNSCORED_SHARE * len(outcomes)):
        counts = Counter(str(outcome.error_class) for outcome in failed)
        kinds = ", ".join(f"{count} x {name}" for name, count in counts.items())
        raise StageError(f"{len(failed)} of {len(outcomes)} programs of {path.name} could not be run "
                         f"({kinds}; {failed[0].error_message}). That is this machine and not the programs, "
                         "so the part was not written: free memory or processes, then run `score` again.")
