"""The stage `score`: completions in, one samples part per completions part out."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from score.checks import check_any_scored, check_stop, check_unscored
from score.display import Progress, summary_lines
from score.follow import LOOK_SECONDS, Sampling, lanes_beside
from score.judging.completions import Questions
from score.judging.golden import check_golden
from score.judging.judge import measure, reward_terms, run_programs
from score.judging.samples import repetition_columns, samples_table
from score.options import ScoreOptions
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.program import Outcome
from score.sandbox.tiers import Tier, lanes_of
from warehouse.stages import warm
from warehouse.stages.clock import Clock
from warehouse.stages.due import rollouts_to_score
from warehouse.stages.space import check_space
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.parts import part_number, read_parts, stored_bytes
from warehouse.store.run_folder import Stage, Warehouse, open_warehouse


@dataclass
class Session:
    """Settings and resources of one command."""

    warehouse: Warehouse
    options: ScoreOptions
    scorer: Scorer
    executor: Executor
    tier: Tier
    stop: StopRequest
    say: Callable[[str], None]
    told: set[str] = field(default_factory=set)     # what is said once, not of every rollout


def run_score(options: ScoreOptions, scorer: Scorer, say: Callable[[str], None],
              preload: Sequence[str] = ()) -> None:
    """Score every rollout that is due; `preload` are modules that the tasks' graders need in the lanes."""
    warehouse, lanes = open_warehouse(options.run), options.lanes
    stop, clock, others = StopRequest(options.time_limit, options.grace), Clock(), num_beside(options)
    due, pruned = rollouts_due(warehouse, options, scorer.identity)
    if pruned:
        say(f"left out: {counted(len(pruned), 'rollout')} up to iteration {pruned[-1][0]}, pruned of the "
            f"tokens that {scorer.identity} would measure")
    elif not due:
        check_any_scored(warehouse, scorer.identity, options.purpose)
        say(f"Nothing to score: {scorer.identity} has scored every complete rollout of {options.run}.")
    if not due:
        return
    unfinished = []
    with ExitStack() as lanes_and_stop:
        with clock.phase("start"):
            pool, tier = lanes_and_stop.enter_context(lanes_of(
                scorer.identity, options.isolation.tier, stays=warm.stays,
                unsafe=options.isolation.unsafe_no_sandbox, limits=scorer.limits,
                num_lanes=lanes.lanes or lanes_beside(others), imports=scorer.imports,
                preload=(*lanes.preload, *preload), import_paths=lanes.import_path))
        say(f"scorer {scorer.identity}, sandbox tier {tier.name}: {tier.words}")
        lanes_and_stop.enter_context(stop)
        session = Session(warehouse, options, scorer, Executor(pool, isolated=tier.isolated), tier, stop, say)
        for iteration, purpose in due:
            stage = warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer.identity)
            with stage.working(clock.total):
                complete = score_rollout(session, iteration, purpose, clock)
            if not complete:
                stage.note_work(clock.total(), "the rollout is not complete")
                unfinished.append(f"{iteration} ({purpose})")
            clock = Clock()                     # the start of the lanes counts once
    if unfinished:
        raise StageStopped(f"The rollout of iteration {', '.join(unfinished)} is not complete: its parts so "
                           "far are scored. Run `score` again once it is.")


def rollouts_due(warehouse: Warehouse, options: ScoreOptions,
                 identity: str) -> tuple[list[tuple[int, str]], ...]:
    """Rollouts to score, as (iteration, purpose), and those that were pruned."""
    iteration = options.iteration
    if iteration is not None and num_beside(options) and not warehouse.state.is_complete(
            "rollout", iteration, "train"):
        return [(iteration, "train")], []
    return rollouts_to_score(warehouse, identity, iteration, options.purpose)


def num_beside(options: ScoreOptions) -> int:
    """How many processes work at the same time, of which one samples the iteration that is scored."""
    return int(os.environ.get(warm.BESIDE, 0)) if options.iteration is not None else 0


def score_rollout(session: Session, iteration: int, purpose: str, clock: Clock) -> bool:
    """Score a rollout part by part, parts that are written are kept; False if the rollout is not complete.

    Raises StageStopped after a request to stop: after the current part, or without it when `stop` is due.
    """
    warehouse, options, executor = session.warehouse, session.options, session.executor
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    sampling = Sampling(warehouse, options.shard, session.stop, **keys) if num_beside(options) else None
    if sampling:
        sampling.wait_for_plan()
    with clock.phase("reading"):
        questions = Questions(warehouse, iteration, purpose)
    with clock.phase("start"):
        num_golden = check_golden(executor, session.scorer,
                                  {row["kind"] for row in questions.payloads.values()})
    num_run = executor.num_run
    while True:
        over = sampling is None or sampling.is_over()
        complete = warehouse.stage("rollout", **keys).is_complete()  # asked before the parts are listed
        numbers = score_parts(session, questions, clock, shown=over, **keys)
        if sampling is None or over:
            break
        sampling.read.update(warehouse.part_path("completions", number, **keys) for number in numbers)
        run_beside(executor, sampling, questions, clock)
    if complete:
        stage = warehouse.stage("score", **keys, scorer=session.scorer.identity)
        finish_rollout(session, stage, numbers, clock, {"programs_run": executor.num_run - num_run,
                                                        "golden": num_golden})
    return complete


def run_beside(executor: Executor, sampling: Sampling, questions: Questions, clock: Clock) -> None:
    """Run programs of completions as they end, and remember their outcomes for the parts that hold them.

    Programs that may read their tests wait for the part: then all other programs of their task have ended.
    """
    programs = sampling.programs(questions)
    for program in programs:
        if program:
            with clock.phase("running"):
                executor.run(itertools.chain([program], programs), settles=False)
        else:
            time.sleep(LOOK_SECONDS)


def score_parts(session: Session, questions: Questions, clock: Clock, *, shown: bool,
                **keys: Any) -> list[int]:
    """Score the parts that are there and not scored yet; the numbers of all that are there."""
    warehouse, scorer = session.warehouse, session.scorer
    stage, read = warehouse.stage("score", **keys, scorer=scorer.identity), what_is_read(warehouse, keys)
    # List samples before completions: another worker may score a part in between.
    done = {part_number(path) for path in warehouse.parts("samples", **keys, scorer=scorer.identity)}
    parts = {part_number(path): path for path in warehouse.parts("completions", **keys)}
    if strangers := done - parts.keys():        # the completions' parts were merged or replaced
        raise StageError(f"Part {min(strangers)} of {stage.title} belongs to no part of the completions any "
                         "more. Run `warehouse check --fix` to leave it out, then `score` again.")
    own = {number: path for number, path in parts.items()
           if number not in done and session.options.shard.holds(number)}
    warehouse.verify("completions", only=own.values(), **keys)
    # A row of samples is smaller than the completion it is about.
    check_space(warehouse.root, stored_bytes(own.values()), stage.title)
    title = f"score {keys['iteration']} {keys['purpose']}"
    with Progress(title, num_parts=len(parts), num_done=len(done), shown=shown) as progress:
        for number, path in own.items():
            check_stop(session.stop, progress)
            check_space(warehouse.root, stored_bytes([path]), stage.title)
            table = score_part(session, path, questions, clock, progress)
            with clock.phase("writing"):
                stage.settle(scorer.settings, **read)      # only when there is something to write
                warehouse.write_part("samples", number, table, **keys, scorer=scorer.identity)
            progress.note_part()
    return list(parts)


def finish_rollout(session: Session, stage: Stage, numbers: list[int], clock: Clock,
                   facts: dict[str, Any]) -> None:
    """Write the manifest and tell the summary, once all parts are scored."""
    keys = stage.identity
    where = f"iteration {keys['iteration']} {keys['purpose']}"
    missing = len(numbers) - len(session.warehouse.parts("samples", **keys))
    if missing:
        stage.note_work(clock.total(), f"share {session.options.shard} is done")
        session.say(f"shard {session.options.shard} of {where} is done; left to the other shards: "
                    f"{counted(missing, 'part')}")
        return
    samples, pool = session.warehouse.read("samples", **keys), session.executor.pool
    user = session.scorer.user
    stage.settle(session.scorer.settings, **what_is_read(session.warehouse, keys))
    stage.complete({"completions": samples.num_rows, "unscored": samples.column("reward").null_count,
                    "tier": session.tier.name, "tier_facts": session.tier.facts, "lanes": len(pool.lanes),
                    "lane_restarts": pool.num_restarts, **facts,
                    **({"reward_source": user.text} if user else {}),
                    "seconds": {name: round(value, 3) for name, value in clock.seconds.items()}}, numbers)
    for line in summary_lines(samples, where, clock.seconds, facts["programs_run"]):
        session.say(line)
    state = session.warehouse.state
    counts, why = session.warehouse.choose_scorer(keys["iteration"], keys["purpose"])
    if counts == keys["scorer"]:
        said, tasks = state.change_of_scorer(keys["iteration"], keys["scorer"])
        if said and keys["purpose"] == "train" and not state.is_trained(keys["iteration"]):
            session.say(f"  {said}: {f'{tasks}, or ' if tasks else ''}the options, your file or Rollhouse's "
                        "verdicts are others. Typed options are not kept: to keep them, put them into "
                        "config.toml")
    elif counts not in session.told:
        session.told.add(counts)
        session.say(f"  train, SQL, summary and reports go on with {counts}: {why}; "
                    f"`score diff {shell_quote(session.warehouse.root)} {shell_quote(counts)} "
                    f"{shell_quote(keys['scorer'])}` compares")


def what_is_read(warehouse: Warehouse, keys: dict[str, Any]) -> dict[str, Any]:
    """The rollout's begin entry and the folder of its parts, as `settle` takes them."""
    rollout = warehouse.state.life("rollout", keys["iteration"], keys["purpose"])
    return {"reads": [rollout.begun], "rows": rollout.folder} if rollout else {}


def score_part(session: Session, path: Path, questions: Questions, clock: Clock,
               progress: Progress) -> pa.Table:
    """The rows of samples for one part of completions."""
    def note_outcome(outcome: Outcome) -> None:
        progress.note_outcome(outcome)
        check_stop(session.stop, progress, path)

    scorer = session.scorer
    with clock.phase("reading"):
        completions = read_parts([path], "completions")
        items = questions.items(completions)
    with clock.phase("running"):
        outcomes = run_programs(session.executor, items, note_outcome)
    check_unscored([outcome for own in outcomes for outcome in own], path)
    with clock.phase("metrics"):
        repetitions = repetition_columns(completions)
        judgements = measure(items, outcomes)
        terms = reward_terms(items, judgements, scorer, completions)
        return samples_table(completions, items, judgements, terms, scorer, session.tier.name, repetitions)
