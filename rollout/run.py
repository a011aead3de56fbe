"""The rollout stage: plan the prompts, start the engine, sample what is missing, finish."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from rollout.carry import begun_rows, check_engine, find_waiting, place_behind
from rollout.endpoint.failures import OF_THE_KEY, Refused
from rollout.engines.engine import Engine
from rollout.job import Job, find_jobs
from rollout.options import RolloutOptions, carry_rule
from rollout.parts import rollout_facts, split_parts
from rollout.prompts.formats import find_format
from rollout.prompts.next_turn import plan_turn
from rollout.prompts.plan import Plan, PlanSettings, make_plan
from rollout.prompts.prompt_encoder import PromptEncoder, load_encoder
from rollout.prompts.selection import choose_parents, choose_tasks, training_visits
from rollout.sample import sample_parts
from rollout.settings import check_options, format_options, prompt_limit
from rollout.start import Sampler, sampler_of, start
from warehouse.ledger.state import TRAIN
from warehouse.maintain.discard import discard
from warehouse.stages.clock import Clock
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StopRequest
from warehouse.store.commit import commit_json, ensure_local
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import open_warehouse
from warehouse.store.schema import arrow_schema
from warehouse.tasks.graders import grader_versions

LATER = ("engine", "serve", "tasks_sha256")        # settings that may be others once a rollout is complete


def run_rollout(options: RolloutOptions, sampler: Sampler | None = None,
                say: Callable[[str], None] = lambda _line: None,
                typed: Collection[str] | None = None) -> Iterator[str]:
    """Complete a rollout (of an evaluation one per split) or this worker's share; yields the lines to print.

    It runs while the lines are read: a split's lines come before the next split is sampled. Only missing rows
    are sampled. Raises StageStopped if a signal or the time limit ended it early. Tests pass a scripted
    `sampler`. `say` gets messages before there is anything to count. A complete rollout is compared with the
    options that were `typed` (None: all), since config.toml may have changed for what comes next.
    """
    clock = Clock()
    check_options(options)
    jobs = []
    for job in find_jobs(open_warehouse(options.run), options):
        if job.stage.is_complete():
            if not job.imported_from:
                job.settle(*LATER, *(() if typed is None else job.settings.keys() - {*typed}))
            state = job.warehouse.state
            is_scored = bool(state.scorers(job.iteration, job.purpose))
            is_due = job.purpose == TRAIN and not state.is_trained(job.iteration)
            following = "score" if not is_scored else "train" if is_due else ""
            yield (f"rollout of {job.title} is complete{' and scored' * is_scored}"
                   + f"; next: {following} {shell_quote(options.run)}" * bool(following))
        else:
            job.check()
            jobs.append(job)
    if not jobs:
        return
    for missing in grader_versions(jobs[0].warehouse.read("tasks", ["kind"])["kind"].to_pylist())[1]:
        say(f"{missing} `score` needs it; sampled rows are kept.")
    if options.group_size == 1 and any(job.purpose == TRAIN for job in jobs):
        say("With --group-size 1 every advantage is 0 whatever the reward, and `train` needs --advantages of "
            "your own. Sample 2 or more.")
    if len({job.policy["sha256"] for job in jobs}) > 1:
        raise StageError("The evaluations of these splits were begun with different policies. Finish each by "
                         "itself, with --split.")
    with StopRequest(options.time_limit, options.grace) as stop, ExitStack() as stack:
        if sampler is None:
            for job in jobs:
                check_prompts(job)
            sampler = stack.enter_context(sampler_of(jobs[0], stop, say))
            jobs = [replace(job, decided=sampler.decided) for job in jobs]
        plans = [(job, plan_prompts(job, sampler.encoder)) for job in jobs]
        clock.lap("import")
        engine = start(plans, sampler, stop, say)
        clock.lap("start")
        for job, plan in plans:
            yield from sample_and_finish(job, plan, engine, clock, stop)
            clock = Clock()
        del engine          # vLLM closes here, and swallows the KeyboardInterrupt of a signal later on


def check_prompts(job: Job) -> None:
    """StageError if no prompt can be sampled, before vLLM is imported; one prompt that fits is enough."""
    options, loads_quickly = job.options, (Path(job.model) / "tokenizer.json").exists()    # without torch
    if loads_quickly and not (options.endpoint or options.turn > 1 or job.prompts()
                              or "rollout.engines.vllm_engine" in sys.modules):
        plan_prompts(replace(job, options=options.replace(num_tasks=1)), load_encoder(job.model, None))


def sample_and_finish(job: Job, plan: Plan, engine: Engine | None, clock: Clock,
                      stop: StopRequest) -> list[str]:
    """Sample what is missing of this worker's share, before a resident engine sleeps; the lines to print."""
    with job.stage.working(clock.elapsed):
        writing, sampled = sample(job, plan, engine, stop)
    clock.lap("sampling")
    job.warehouse.check_live("rollout", **job.keys)
    elsewhere = job.missing(plan.rows, Shard())
    if elsewhere and not job.stage.is_complete():
        if sampled:
            job.stage.note_work(clock.elapsed(), f"share {job.options.shard} is done")
        num_parts, shard = len(split_parts(plan.rows, job.options.part_size, Shard())), job.options.shard
        size = max(1, sum(row["group_size"] for row in plan.rows) // (4 * shard.count))
        few = [f"{counted(num_parts, 'part')} for {shard.count} shards: some have nothing to do. Set "
               f"part-size = {size} before the next iteration begins"] if num_parts < shard.count else []
        return [f"shard {shard} of {job.title} is done; left to the other shards: "
                f"{counted(len(elsewhere), 'part')}", *few]
    return finish(job, plan, {"import": 0.0, "start": 0.0, **clock.seconds,
                              "sampling": clock.seconds["sampling"] - writing, "writing": writing}, sampled)


def plan_prompts(job: Job, encoder: PromptEncoder) -> Plan:
    stored, options = job.prompts(), job.options
    length = sys.maxsize if options.model and options.evaluate else encoder.model_length
    max_prompt_tokens = prompt_limit(options, length)
    if stored:
        if not options.model and any(row["prompt_ids"] is None for row in stored) and job.missing(
                stored, options.shard):
            raise StageError(f"The tokens of rollout of {job.title} were pruned, so its missing rows "
                             "cannot be sampled again. Restore its parts from a copy.")
        return Plan(stored, begun=begun_rows(job.warehouse, stored, **job.keys))
    if options.turn > 1:
        parents = choose_parents(job.warehouse, options, **job.keys)
        return plan_turn(parents, options, encoder, max_prompt_tokens, **job.keys)
    waiting, num_unfinished = find_waiting(job.warehouse, options, **job.keys)
    visits = training_visits(job.warehouse, job.iteration) if job.purpose == "train" else {}
    own, switches = format_options(options)
    if unknown := [name for name in switches if options.model or not encoder.reads(name)]:
        raise StageError(f"Prompt format {options.prompt_format} has no option '{unknown[0]}', and no chat "
                         f"template here reads it. The format has: {', '.join(own) or 'none'}.")
    settings = PlanSettings(options, **job.keys, max_prompt_tokens=max_prompt_tokens,
                            format=find_format(options.prompt_format), format_options=own,
                            visits=visits, chat_options=switches, num_taken=num_unfinished)
    plan = make_plan(choose_tasks(job.warehouse, options), settings,
                     encoder.switched(switches) if switches else encoder)
    placed = place_behind(plan.rows, waiting, job.iteration)
    rows = [*placed, *plan.rows]
    return Plan(rows, plan.too_long, begun_rows(job.warehouse, rows, **job.keys))


def sample(job: Job, plan: Plan, engine: Engine | None, stop: StopRequest) -> tuple[float, int]:
    """Store settings and plan, sample this worker's parts; return seconds of writing and tokens sampled."""
    options, keys = job.options, job.keys
    if engine:
        check_engine(plan.begun, engine)
    job.settle(plan=plan.rows)
    folder = job.warehouse.folder_of("prompts", job.warehouse.check_live("rollout", **keys))
    commit_json(folder / job.plan_file.name, {
        "prompts_too_long": plan.too_long, "tasks_sql": options.tasks_sql, **plan.facts})
    job.warehouse.write_part("prompts", 0, pa.Table.from_pylist(plan.rows, arrow_schema("prompts")), **keys)
    prompts = plan.rows = job.prompts()     # another worker may have been first
    job.warehouse.check_live("rollout", **keys)
    parts = job.missing(prompts, options.shard)
    if not engine or not parts:
        return 0.0, 0
    closed = None
    if options.carry_over and carry_rule(options.carry_over) != (1.0, ""):
        open_parts = {part.number for part in parts}
        carried = set(job.warehouse.read("carried", ["group_id"], **keys)["group_id"].to_pylist())
        closed = [prompt["group_id"] for part in split_parts(prompts, options.part_size, options.shard)
                  if part.number not in open_parts for prompt, _ in part.without(carried).members]
    try:
        return sample_parts(job, engine, parts, stop, begun=plan.begun, closed=closed)
    except Refused as refusal:          # an unknown --api-model must not be recorded
        if options.model and refusal.status not in OF_THE_KEY and not (
                job.warehouse.parts("completions", **keys) or job.stage.written()):
            discard(job.warehouse, **keys)
        raise


def finish(job: Job, plan: Plan, seconds: dict[str, float], sampled: int) -> list[str]:
    """Write the manifest; return the lines that report what was done."""
    ensure_local([job.plan_file])
    facts = {**rollout_facts(job.warehouse, **job.keys), **(read_json(job.plan_file) or {}),
             "num_tokens_sampled_last": sampled,
             "seconds": {name: round(value, 3) for name, value in seconds.items()}}
    parts = split_parts(plan.rows, job.options.part_size, Shard())
    job.stage.complete(facts, [part.number for part in parts])
    too_long = facts["prompts_too_long"]
    left_out = f"; {counted(too_long, 'task')} left out because the prompt is too long" if too_long else ""
    left = facts.get("num_carried_groups", 0)
    carried = f"; {counted(left, 'group')} carried over" if left else ""
    rate = sampled / max(facts["seconds"]["sampling"], 1e-9)
    whose = "this process: " if sampled < facts["num_tokens"] else ""
    sampler = job.options.model or f"policy {job.policy['policy_version']}"
    return [
        f"rollout of {job.title}: {counted(facts['num_completions'], 'completion')} of "
        f"{counted(facts['num_tasks'], 'task')} by {sampler}, {counted(facts['num_tokens'], 'token')}, "
        f"{facts['num_truncated'] / facts['num_completions']:.1%} truncated{left_out}{carried}",
        f"  {whose}{seconds['sampling']:.1f} s sampling ({rate:,.0f} tokens/s), "
        f"{seconds['import']:.1f} s import "
        f"and prompts, {seconds['start']:.1f} s engine start; next: score {shell_quote(job.options.run)}",
    ]
