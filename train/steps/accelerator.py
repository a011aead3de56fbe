"""The one door to accelerate: which process this is, its device, and sums over all processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import gather_object
from torch.distributed.fsdp import CPUOffloadPolicy

from train.model.sharding import Sharding
from warehouse.sql.database import connect, rows_of
from warehouse.stages import warm
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import STOPPED_EXIT_CODE, StageError, first_line
from warehouse.store.run_folder import Warehouse

T = TypeVar("T")
Log = Callable[[dict[str, Any], int], None]      # numbers among the metrics, at a global step
STUCK_SECONDS = 20.0        # launchers kill 30 seconds after their signal
# Columns of `iteration_stats` about sampling; the others are about rewards.
OF_ROLLOUT = ("tokens_", "truncated_", "unique_", "ngram", "loop_", "nll_", "empty_")
STATS = "SELECT * EXCLUDE (iteration, policy_version, max_k) FROM iteration_stats WHERE iteration = $1"
PARTS = "SELECT purpose, part, mean FROM part_means WHERE iteration = $1"
COSTS = """SELECT stage, seconds, tokens_per_second, completions_per_second FROM costs
           WHERE iteration = $1 AND purpose = 'train' AND stage IN ('rollout', 'score')"""


@contextlib.contextmanager
def tracker(name: str | None, warehouse: Warehouse, iteration: int, first_step: int,
            options: Mapping[str, Any] | None = None) -> Iterator[Log]:
    """Send numbers to TensorBoard, W&B, MLflow or trackio through Accelerate; without a name to nothing.

    All stages of a run are one run there, ordered by `global_step`; it begins with their settings, for this
    training its `options`. After a rollback its name gets a counter, because sent numbers cannot be taken
    back.
    """
    if name is None:
        yield lambda _metrics, _step: None
        return
    from accelerate import Accelerator
    rollbacks = warehouse.state.num_rollbacks(iteration)
    folder, after = warehouse.root / "tracking", f"-{rollbacks}" if rollbacks else ""
    title, known = f"{warehouse.root.name}{after}", folder / f"mlflow{after}"
    continued = {
        "wandb": {"id": warehouse.run_id + after, "name": title, "resume": "allow", "dir": str(folder)},
        "trackio": {"name": f"{title}-{warehouse.run_id[:6]}", "resume": "allow"},
        "mlflow": {"run_name": title, "run_id": known.read_text() if known.exists() else None},
        "tensorboard": {"purge_step": first_step}}
    stages = [*warehouse.state.of_stage("rollout", iteration, "train"),
              *warehouse.state.of_stage("score", iteration, "train")]
    chosen = {life.stage: life.settings for life in stages} | {"train": options or {}}
    hyperparameters = None if folder.exists() else {
        f"{stage}/{name}": value for stage, settings in chosen.items() for name, value in settings.items()
        if isinstance(value, (str, int, float))}
    try:
        folder.mkdir(exist_ok=True)
        accelerator = Accelerator(log_with=name, project_dir=str(folder))
        accelerator.init_trackers(title if name == "tensorboard" else "rollhouse", hyperparameters,
                                  init_kwargs=continued)
        if name == "mlflow":
            known.write_text(accelerator.get_tracker(name, unwrap=True).info.run_id)
    except Exception as error:      # each tracker has classes of its own
        offline = " (WANDB_MODE=offline needs none)" if name == "wandb" else ""
        raise StageError(f"--track {name} cannot be used: {first_line(error)}{offline}. "
                         "Correct that, or leave --track out.") from error

    def log(metrics: dict[str, Any], step: int) -> None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        accelerator.log(numbers, step=step)

    log(stage_numbers(warehouse, iteration), first_step)
    try:
        yield log
    finally:
        accelerator.end_training()      # flushes


def stage_numbers(warehouse: Warehouse, iteration: int) -> dict[str, Any]:
    """Numbers by name: `rollout/..` and `score/..` of the training's rows, `eval/..` of each evaluation."""
    connection, numbers = connect(warehouse, iteration=iteration), {}
    for row in rows_of(connection, STATS, [iteration]):
        for column, value in row.items():
            group = "rollout" if column.startswith(OF_ROLLOUT) else "score"
            numbers[f"{group if row['purpose'] == 'train' else row['purpose']}/{column}"] = value
    for row in rows_of(connection, PARTS, [iteration]):
        group = "score" if row["purpose"] == "train" else row["purpose"]
        numbers[f"{group}/reward_parts/{row['part']}"] = row["mean"]
    for row in rows_of(connection, COSTS, [iteration]):
        stage = row.pop("stage")
        numbers |= {f"{stage}/{column}": value for column, value in row.items()}
    return numbers


GONE = ("Another process of this training ended; its own message stands above or below. Saved work is "
        "kept: run the same command again, with as many processes as you like.")


@contextlib.contextmanager
def ending_if_stuck(answered: Callable[[], bool], seconds: float = STUCK_SECONDS) -> Iterator[None]:
    """End this process with a sentence if it does not react to a signal for `seconds`."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        signalled = os.read(reading, 1)
        os.close(reading)
        time.sleep(seconds if signalled else 0)
        if signalled and not answered():
            os.write(2, f"{GONE}\n".encode())
            os._exit(STOPPED_EXIT_CODE)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writing)


class Processes:
    """The processes of one training run; alone, every reduction is the identity."""

    def __init__(self, device: str | None = None):
        count = torch.cuda.device_count()
        if device not in (None, "cpu", *["cuda"][:count], *(f"cuda:{index}" for index in range(count))):
            raise StageError(f"--device {device} is not there: PyTorch sees a CPU and {count} GPUs. Name one "
                             "of them (cpu, cuda, cuda:1), or leave --device out.")
        _check_launch()
        self._state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
        self.index, self.count = self._state.process_index, self._state.num_processes
        self.device = torch.device(device) if device and self.count == 1 else self._state.device
        self.sharding = _sharding(self.count)

    @property
    def first(self) -> bool:
        return self.index == 0

    def by_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process and return its result in all; its StageError ends all of them."""
        result: Any = None
        failure: StageError | None = None
        if self.first:
            try:
                result = work()
            except StageError as error:
                failure = error
        if self.count > 1:
            result, exit_code = self.gather([(result, failure and failure.exit_code)])[0]
            if exit_code is not None and not self.first:
                sys.exit(exit_code)         # the first one says why
        if failure:
            raise failure
        return result

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of all processes once per optimizer step; a missing one becomes 0.

        Gradients of sharded parameters are summed already.
        """
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.count == 1 or self.sharding:
            return
        # One message instead of hundreds: an adapter has many small gradients.
        flat = torch.cat([parameter.grad.flatten().float() for parameter in parameters])  # type: ignore[union-attr]
        torch.distributed.all_reduce(flat)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, values in zip(parameters, flat.split(sizes), strict=True):
            parameter.grad = values.view_as(parameter).to(parameter.dtype)

    def gather(self, values: list[Any]) -> list[Any]:
        return gather_object(values) if self.count > 1 else values

    @contextlib.contextmanager
    def missing_none(self, stop: StopRequest) -> Iterator[None]:
        """Explain a failed or endless wait for other processes: one of them is gone."""
        if self.count == 1:
            yield
            return
        # NCCL waits forever, and its launcher kills the processes that wait.
        endless = self.device.type == "cuda"
        try:
            with ending_if_stuck(lambda: stop.signalled) if endless else contextlib.nullcontext():
                yield
        except RuntimeError as error:
            if not (isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):
                raise
            raise StageStopped(GONE) from error

    def close(self) -> None:
        """Leave the process group, unless the next training in this process uses it."""
        if torch.distributed.is_initialized() and not warm.stays:
            self._state.destroy_process_group()


def _check_launch() -> None:
    rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if gpus and rank >= gpus and os.environ.get("ACCELERATE_USE_CPU", "false").lower() != "true":
        raise StageError(f"{os.environ.get('LOCAL_WORLD_SIZE', rank + 1)} processes were started here, and "
                         f"PyTorch sees {gpus} GPUs. Start as many processes as there are GPUs "
                         "(--num_processes, --nproc-per-node).")
    if {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys() and not {
            "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"} & os.environ.keys():
        raise StageError("`accelerate launch` was asked for several processes and started one, as it does "
                         "on a CPU. Start them by `torchrun --standalone --nproc-per-node N "
                         "\"$(which train)\" RUN`. For a single process unset MASTER_PORT.")
    for name, engine in (("DEEPSPEED", "DeepSpeed"), ("MEGATRON_LM", "Megatron-LM")):
        if _is_on(f"ACCELERATE_USE_{name}"):
            raise StageError(f"The config of `accelerate launch` asks for {engine}, which `train` cannot "
                             "use. Take one of examples/many-gpus, or plain data parallelism.")


def _sharding(num_processes: int) -> Sharding | None:
    """How weights are sharded, by the config of `accelerate launch`; None: each process has all."""
    if not _is_on("ACCELERATE_USE_FSDP"):
        return None
    if not torch.distributed.is_initialized():
        raise StageError("The environment asks for FSDP, but no process group was started. Start the stage "
                         "by `accelerate launch --config_file CONFIG \"$(which train)\" RUN`.")
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise StageError("The config of `accelerate launch` asks for FSDP 1. Set fsdp_version to 2, as in "
                         "examples/many-gpus.")
    try:
        plugin = FullyShardedDataParallelPlugin()
    except (ValueError, KeyError, TypeError) as error:
        raise StageError(f"The FSDP settings of `accelerate launch` cannot be used: {error}. Compare them "
                         "with those in examples/many-gpus.") from error
    # Otherwise transformers loads weights only in the first process and leaves the rest to Accelerate.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    return Sharding(num_processes, by_layer=bool(plugin.reshard_after_forward),
                    offload=isinstance(plugin.cpu_offload, CPUOffloadPolicy),
                    checkpoint=plugin.activation_checkpointing)


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("true", "1", "yes")
