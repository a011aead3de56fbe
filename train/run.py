"""One train stage, from stored rows to the next policy, in the order of the algorithm."""

import contextlib
from collections.abc import Callable, Iterator

from train.ask import write_logprobs
from train.finish import finish
from train.inputs.asked import Model, rollouts_of
from train.inputs.inputs import Inputs, begin, mismatch_floor
from train.inputs.options import AskOptions, TrainOptions
from train.inputs.settings import asks_base
from train.model.loading import load_full
from train.model.policy import SHARED_PROMPT, Policy
from train.model.saving import whole_policy
from train.resident import give_back_memory, keep, kept_or_loaded
from train.start import (
    check_fits,
    has_nothing,
    load_optimizer,
    open_processes,
    plan_batch,
    sharing,
    stored_logprobs,
)
from train.steps.accelerator import Processes, tracker
from train.steps.budget import choose_tokens
from train.steps.checkpoint import Checkpoints
from train.steps.logprob_pass import COLUMNS, collect, fill_logprobs, hand_out, make_probe
from train.steps.mismatch import check_mismatch, lines_to_print, mismatch_table
from train.steps.row import RowGroup, forwardable, weigh_rows
from train.steps.steps import Learner, check_schedule, take_steps
from warehouse.stages import warm
from warehouse.stages.clock import Clock
from warehouse.stages.space import POLICY_COPIES, check_space, checkpoint_bytes, lacks_memory
from warehouse.stages.stop import StopRequest
from warehouse.store.errors import StageError, first_line
from warehouse.store.run_folder import Warehouse

MISMATCH_NUMBERS = ("mismatch_kl", "log_ratio_abs_mean", "log_ratio_abs_max", "importance_weight_mean")


def train_iteration(warehouse: Warehouse, inputs: Inputs, settings: TrainOptions, *, started: float,
                    say: Callable[[str], None], teacher: Model | None = None) -> None:
    """Train on the rows of one iteration and commit the next policy; run again after a kill, it finishes.

    Raises MismatchError before the first update if the engine served other weights than the rows say, and
    StageStopped, with everything saved, on a signal or at the time limit.
    """
    clock, warm.sound = Clock(started), False
    processes = open_processes(settings)
    say = say if processes.first else lambda line: None
    clock.lap("import")
    with (StopRequest(settings.time_limit) as stop, processes.missing_none(stop),
          name_what_to_lower(lambda: settings.tokens_per_batch),
          tracker(settings.track if processes.first and not settings.dry_run else None, warehouse,
                  inputs.iteration, inputs.parent.get("global_step", 0) + 1, vars(settings)) as log,
          inputs.stage.working(clock.elapsed) if processes.first else contextlib.nullcontext()):
        if inputs.stage.settings() and not settings.dry_run:
            processes.by_first(lambda: begin(inputs, settings))
        if teacher:
            inputs = ask_teacher(warehouse, inputs, settings, teacher, processes, stop, say)
            clock.lap("teacher")
        checkpoints = Checkpoints(warehouse, inputs.stage, processes)
        batch, plan = plan_batch(inputs, settings, checkpoints, processes, say)
        policy = kept_or_loaded(warehouse, inputs.parent, settings, processes)
        check_fits(policy, inputs.groups)
        if not settings.tokens_per_batch:       # as many as fit the memory of every process
            chosen = processes.gather([choose_tokens(policy, inputs.groups)])
            settings = settings.replace(tokens_per_batch=min(chosen))
        learner = prepare(warehouse, inputs, settings, policy, batch, plan, checkpoints, processes, say)
        needed = POLICY_COPIES * checkpoint_bytes(learner.num_parameters())
        if not settings.dry_run:
            processes.by_first(lambda: check_space(warehouse.root, needed, inputs.stage.title))
        clock.lap("start")

        if not learner.online:
            compute_logprobs(warehouse, inputs, learner, stop)
            check_and_begin(warehouse, inputs, learner, say)
            clock.lap("old logprobs")
        if settings.dry_run:
            has_nothing(inputs, learner.batch, settings.replace(dry_run=False))
            say("dry run: nothing was written")
            processes.close()
            return
        steps = take_steps(learner, stop=stop, say=say, log=lambda step: log(
            {f"train/{name}": value for name, value in step.items()}, step["global_step"]),
                           before_update=lambda: check_and_begin(warehouse, inputs, learner, say))
        for line in mismatch_table(learner.batch, settings)[:1]:
            named = {"mismatch_kl": "off_policy_kl" if line["staleness"] else "mismatch_kl_fresh"}
            log({f"train/{named.get(name, name)}": line[name] for name in MISMATCH_NUMBERS},
                learner.global_step + max(1, len(steps)))
        clock.lap("gradients")
        probe = make_probe(policy, learner.batch, settings.tokens_per_batch)
        whole = whole_policy(policy, learner.optimizer, keep=processes.first)
        written = processes.by_first(
            lambda: finish(warehouse, inputs, learner, steps, whole, probe, clock, say))
    keep(policy, warehouse, settings, written)
    processes.close()


def ask_teacher(warehouse: Warehouse, inputs: Inputs, settings: TrainOptions, teacher: Model,
                processes: Processes, stop: StopRequest, say: Callable[[str], None]) -> Inputs:
    """Store the teacher's logprobs of all rows; return the inputs with these among the stages they read."""
    rollouts = rollouts_of(warehouse, inputs.groups)
    write_logprobs(warehouse, [teacher], rollouts, AskOptions(dtype=settings.dtype), processes, stop, say)
    give_back_memory()      # that of the teacher
    said = [warehouse.state.life("logprobs", **rollout.identity, scorer=teacher.name) for rollout in rollouts]
    return inputs._replace(reads=[*inputs.reads, *(life.begun for life in said if life)])


def prepare(warehouse: Warehouse, inputs: Inputs, settings: TrainOptions, policy: Policy,
            batch: list[RowGroup], plan: list[list[int]], checkpoints: Checkpoints, processes: Processes,
            say: Callable[[str], None]) -> Learner:
    if policy.attention != SHARED_PROMPT:
        say(sharing(policy, inputs.groups))
    # These need the old logprobs of all rows before the first gradient, and a dry run prints a table of them.
    needs_pass = settings.entropy_quantile < 1 or asks_base(settings) or settings.dry_run
    online = len(plan) == 1 and not needs_pass      # so no checkpoint has steps
    optimizer = load_optimizer(policy, warehouse, inputs, settings, say)
    learner = Learner(policy, optimizer, batch, plan, checkpoints, processes, settings, inputs.stage,
                      inputs.parent.get("global_step", 0), warehouse.state.rate(inputs.iteration),
                      online)
    check_schedule(learner, say)
    if learner.rate != 1:
        say(f"learning rate x {learner.rate:g}, by `warehouse loop --rescue`")
    return learner


def compute_logprobs(warehouse: Warehouse, inputs: Inputs, learner: Learner, stop: StopRequest) -> None:
    """Old and reference logprobs of all rows, from the checkpoint if it has them."""
    policy, settings, processes = learner.policy, learner.settings, learner.processes
    if (stored := stored_logprobs(inputs, settings, learner.checkpoints)) is not None:
        return hand_out(forwardable(learner.batch), stored)
    rows = learner.batch, processes, settings.tokens_per_batch
    fill_logprobs(policy, *rows, "old_logprobs", stop)
    if asks_base(settings):
        base = policy if policy.is_adapter else load_full(
            warehouse.model, dtype=settings.dtype, device=policy.device, sharding=processes.sharding,
            revision=warehouse.facts.get("model_revision"))
        with policy.without_adapter() if policy.is_adapter else contextlib.nullcontext():
            fill_logprobs(base, *rows, "ref_logprobs", stop)


def check_and_begin(warehouse: Warehouse, inputs: Inputs, learner: Learner,
                    say: Callable[[str], None]) -> None:
    """Print the mismatch table, stop if it is too large, begin the stage: nothing is written before this.

    The forward of a single step gave pi_old only for rows with a gradient; the others are computed here.
    """
    settings = learner.settings
    fill_logprobs(learner.policy, learner.batch, learner.processes, settings.tokens_per_batch, "old_logprobs")
    for group in learner.batch:
        weigh_rows(forwardable([group]), settings)
    table = mismatch_table(learner.batch, settings)
    for line in lines_to_print(table, learner.batch):
        say(line)
    check_mismatch(table, settings, engine_dtype=inputs.groups[0].dtype,
                   floor=mismatch_floor(warehouse, inputs.iteration), say=say)
    if learner.plan and has_nothing(inputs, learner.batch, settings):
        learner.plan.clear()        # AdamW would still move by its moments

    def open_stage() -> None:
        begin(inputs, settings)
        columns = (*COLUMNS, "advantages") if settings.advantages else COLUMNS
        learner.checkpoints.save_logprobs(collect(learner.batch, columns))
    if not settings.dry_run:
        learner.processes.by_first(open_stage)


@contextlib.contextmanager
def name_what_to_lower(tokens_per_batch: Callable[[], int]) -> Iterator[None]:
    """Turn running out of memory into a sentence that names the option to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise StageError(f"Out of memory: {first_line(error)}. Lower --tokens-per-batch, now "
                         f"{tokens_per_batch() or 'not chosen yet'}, or --gpu-memory-utilization of an "
                         "engine that samples meanwhile, or share the weights over GPUs or with the CPU "
                         "(docs/many-gpus.md); what was saved so far is kept.") from error
