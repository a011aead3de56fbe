"""One short run of the starter, its stages called in turn in this process, and what it left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.study.replay import HISTORY, Look, look
from benchmarks.study.results import history_of
from benchmarks.study.sampler import SmallSampler, load_encoder
from rollout.cli import default_options
from rollout.engines.engine import EngineSettings, Sampling
from rollout.run import run_rollout
from rollout.start import Sampler
from score.cli import score as score_command
from train.cli import train
from warehouse.init import init_run
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import StageError
from warehouse.store.names import turn_purpose
from warehouse.store.run_folder import Warehouse, open_warehouse

STARTER = Path(__file__).parents[2] / "examples" / "starter"
POOL = ("arc-agi-1:training@" + str(Path(__file__).parents[2] / "examples" / "demo" / "pool.txt"),)
SMALL: dict[str, Any] = {"num_tasks": 32, "group_size": 8, "prompt_format": "compact",
                         "max_prompt_tokens": 700, "dtype": "float32", "max_tokens": 56}
SECOND = {"feedback": str(STARTER.parent / "turns" / "again.py") + ":again", "max_prompt_tokens": 960}
REWARD = ("--reward", "arc-exact-shaped")
OUT_OF_TIME = "out of time"
MEASURING = 150                     # seconds kept for the evaluation of an endless run
DEAD, DEAD_SHARE = 20, 0.01          # iterations of which no more than this share is solved
SAMPLING = {each.name for each in fields(Sampling)}


@dataclass(frozen=True)
class Stages:
    """Options of the three stages; a later value of the same option wins."""

    rollout: dict[str, Any] = field(default_factory=dict)
    score: tuple[str, ...] = REWARD
    train: tuple[str, ...] = ()
    staleness: int = 0                 # how many policies before its own an iteration is sampled with
    served: int | None = None          # the policy that the engine holds whatever it says; -1: the one before
    renumbered: int = 0                # tokens that the engine's tokenizer numbers otherwise
    turns: int = 1                     # among which the completions of an iteration are shared out


@dataclass(frozen=True)
class Plan:
    """A run of a study: what it is called, its options, and those it has from iteration `onset` on."""

    study: str
    kind: str
    seed: int
    well: Stages = Stages()
    ill: Stages | None = None
    onset: int = 0
    iterations: int = 10
    model: str = "model"
    tasks: tuple[str, ...] = POOL
    heldout: tuple[str, ...] = ()
    evaluated: dict[int, int] = field(default_factory=dict)      # completions per held-out task, by policy
    final: int = 0                     # completions per task of all tasks by the last policy
    drawn: dict[str, Any] = field(default_factory=dict)          # how completions that measure are sampled
    answered: int = 0                  # held-out completions per task whose wrong ones get as many answers
    is_endless: bool = False           # until time is over or nothing is solved any more; then it is measured

    @property
    def name(self) -> str:
        return f"{self.study}/{self.kind}/{self.seed}"


def execute(plan: Plan, folder: Path, deadline: float, score_options: tuple[str, ...] = (),
            output: Path | None = None, report: Callable[[dict[str, Any]], None] | None = None
            ) -> dict[str, Any]:
    """Run it in `folder` until it is done, cannot go on, or the deadline (time.time()) is near; what it left.

    What its alarms are computed from is kept in `output`. `report` gets what an endless run left before it is
    measured, in case that takes too long.
    """
    began, looks, ended = time.time(), [], "done"
    init_run(folder, str(STARTER / plan.model), plan.tasks, plan.heldout)
    warehouse = open_warehouse(folder)
    try:
        for iteration in range(plan.iterations):
            left = deadline - time.time() - (time.time() - began) / max(1, iteration)
            if left < (MEASURING if plan.is_endless else 0):
                if plan.is_endless:
                    break
                raise StageError(OUT_OF_TIME)
            stages = plan.ill if plan.ill and iteration >= plan.onset else plan.well
            one_iteration(plan, stages, warehouse, iteration, score_options)
            if not plan.is_endless:
                looks.append(looked(warehouse))
            elif iteration % DEAD == DEAD - 1 and is_dead(warehouse, iteration):
                break
        if plan.is_endless:
            last = warehouse.log.refresh().newest
            plan = replace(plan, iterations=last, evaluated={last: max(plan.evaluated.values())})
            looks.append(looked(warehouse))
            if report:
                report(result_of(plan, warehouse, began, looks, "not measured"))
        measure(plan, warehouse, score_options)
    except (StageError, click.ClickException, SystemExit) as error:
        ended = error.message if isinstance(error, click.ClickException) else str(error)
        looks.append(looked(warehouse))
    if output and plan.study.startswith(("drill", "healthy", "long", "regime")):
        keep_history(warehouse, history_of(output, plan.name))
    return result_of(plan, warehouse, began, looks, ended)


def result_of(plan: Plan, warehouse: Warehouse, began: float, looks: list[Look], ended: str
              ) -> dict[str, Any]:
    """The line of results of a run."""
    return {"study": plan.study, "kind": plan.kind, "seed": plan.seed, "onset": plan.onset, "ended": ended,
            "seconds": round(time.time() - began, 1), "looks": looks, **left_by(warehouse, plan)}


def one_iteration(plan: Plan, stages: Stages, warehouse: Warehouse, iteration: int,
                  score_options: tuple[str, ...]) -> None:
    """Roll out and score every turn, then train."""
    size = (SMALL | stages.rollout)["group_size"] // stages.turns
    for turn in range(1, stages.turns + 1):
        sample(plan, stages, warehouse, iteration=iteration, group_size=size, **(SECOND if turn > 1 else {}),
               turn=turn, policy_version=max(0, iteration - stages.staleness))
        score(warehouse, iteration, turn_purpose("train", turn), *stages.score, *score_options)
    train.main([str(warehouse.root), "--iteration", str(iteration), "--seed", str(plan.seed),
                "--device", "cpu", "--threads", "1", *stages.train], standalone_mode=False)


def is_dead(warehouse: Warehouse, iteration: int) -> bool:
    """True if the last DEAD iterations solved next to nothing."""
    with connect(warehouse) as connection:
        [row] = rows_of(connection, "SELECT avg(pass_at_1) AS solved FROM iteration_stats "
                                    f"WHERE purpose = 'train' AND iteration > {iteration - DEAD}")
    return float(row["solved"]) < DEAD_SHARE


def measure(plan: Plan, warehouse: Warehouse, score_options: tuple[str, ...]) -> None:
    """Sample the held-out tasks, or all that are trained on, with the last policy."""
    last = plan.iterations
    if last in plan.evaluated:
        sample(plan, Stages(plan.drawn), warehouse, iteration=last, evaluate=True, num_tasks=None,
               group_size=plan.evaluated[last])
        score(warehouse, last, "eval", *REWARD, *score_options)
    if plan.answered:
        parents = f"FROM wrong_completions({last}, of_purpose := 'eval') WHERE sample_index < {plan.answered}"
        sample(plan, Stages(), warehouse, iteration=last, evaluate=True, num_tasks=None, turn=2, **SECOND,
               group_size=8, parents_per_task=plan.answered // 8, parents_sql=parents)
        score(warehouse, last, "eval-turn2", *REWARD, *score_options)
    if plan.final:
        sample(plan, Stages(), warehouse, iteration=last, num_tasks=None, group_size=plan.final)
        score(warehouse, last, "train", *REWARD, *score_options)


def score(warehouse: Warehouse, iteration: int, purpose: str, *options: str) -> None:
    """The stage `score` by one lane."""
    score_command.main([str(warehouse.root), "--iteration", str(iteration), "--purpose", purpose,
                         "--lanes", "1", *options], standalone_mode=False)


def sample(plan: Plan, stages: Stages, warehouse: Warehouse, *, iteration: int, **more: Any) -> None:
    """A rollout by the small sampler."""
    chosen = SMALL | stages.rollout | more
    options = default_options(warehouse.root).replace(
        iteration=iteration, seed=plan.seed, allow_truncated_sampling=True,
        sampling=Sampling(**{name: chosen.pop(name) for name in SAMPLING & chosen.keys()}), **chosen)

    def start(settings: EngineSettings) -> SmallSampler:
        if stages.served is not None:
            with weights_of(warehouse, max(0, iteration + stages.served if stages.served < 0
                                           else stages.served)) as model:
                return SmallSampler(replace(settings, model=model), stages.renumbered)
        return SmallSampler(settings, stages.renumbered)
    list(run_rollout(options, Sampler(load_encoder(warehouse.model), start)))


@contextmanager
def weights_of(warehouse: Warehouse, version: int) -> Iterator[str]:
    """A folder with the weights of some policy."""
    from rollout.engines.merged import merged_weights
    if version == 0:
        yield warehouse.model
    else:
        with merged_weights(warehouse.model, None, warehouse.policy_dir(version), "float32") as folder:
            yield folder


def looked(warehouse: Warehouse) -> Look:
    """What the alarms say of the run now."""
    with connect(warehouse) as connection:
        return look(connection)


def left_by(warehouse: Warehouse, plan: Plan) -> dict[str, Any]:
    """Curves of the run, right answers by task of its evaluation and last iteration, and what was sampled."""
    queries = {
        "curves": "SELECT iteration, solving_plain, solving, solving_error, reach, reach_plain, reward, "
                  "reward_error FROM adjusted WHERE purpose = 'train' ORDER BY iteration",
        "evaluations": "SELECT iteration, task_id, n, c FROM task_results WHERE purpose = 'eval' "
                       "ORDER BY ALL",
        "answers": "SELECT task_id, count(*), count(*) FILTER (correct) FROM samples "
                   "WHERE purpose = 'eval-turn2' GROUP BY ALL ORDER BY ALL",
        "parents": "SELECT task_id, count(*) FILTER (correct) FROM samples "
                   f"WHERE purpose = 'eval' AND sample_index < {plan.answered} GROUP BY ALL ORDER BY ALL",
        "sampled": "SELECT purpose, count(*), sum(num_completion_tokens), avg(num_prompt_tokens) "
                   "FROM samples GROUP BY ALL ORDER BY ALL",
        "final": "SELECT task_id, n, c FROM task_results WHERE purpose = 'train' AND iteration = "
                 "(SELECT max(iteration) FROM task_results WHERE purpose = 'train') ORDER BY ALL"}
    with connect(warehouse) as connection:
        return {name: [[round(value, 6) if isinstance(value, float) else value for value in row.values()]
                       for row in rows_of(connection, query)] for name, query in queries.items()}


def keep_history(warehouse: Warehouse, folder: Path) -> None:
    """What signals are computed from, as Parquet files of `folder`: the alarms can be asked again."""
    folder.mkdir(parents=True, exist_ok=True)
    with connect(warehouse) as connection:
        for table in HISTORY:
            connection.execute(f"COPY (FROM {table}) TO '{folder}/{table}.parquet' (COMPRESSION zstd)")
