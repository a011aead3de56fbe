"""The GPUs that a loop uses on this machine: which sample, which train, and their failures."""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warehouse.stages import warm
from warehouse.store.errors import StageError, counted

MOST_FAILURES = 2               # failures of a stage in a row, after which its GPU is left out
LEAST_GAIN = 0.1                # share of an iteration that a move must save: it restarts processes
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Device(NamedTuple):
    """A GPU, or its substitute in tests on a CPU."""

    name: str                   # as shown in sentences
    variable: str | None        # its name in CUDA_VISIBLE_DEVICES; None leaves it unchanged


class Worker(NamedTuple):
    """A process of a stage: its devices, and the environment variables that assign them."""

    devices: tuple[Device, ...]
    place: Mapping[str, str]

    @property
    def name(self) -> str:
        return " and ".join(device.name for device in self.devices)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, from CUDA_VISIBLE_DEVICES."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def chosen_devices(gpus: str, cpus: int | None = None) -> list[Device]:
    """The devices in `--gpus`: 'all', or numbers among the GPUs that this process sees, as in torch.

    StageError for a missing one. Without a GPU it is the CPU; `cpus` is its number of workers.
    """
    if cpus is not None:
        return [Device(f"device {number}", str(number)) for number in range(cpus)]
    visible = visible_gpus()
    if gpus == "all":
        if len(visible) < 2:
            return [Device("the device", None)]
        numbers = [*range(len(visible))]
    else:
        texts = [text.strip() for text in gpus.split(",")]
        if not all(text.isdecimal() and int(text) < len(visible) for text in texts) or (
                len({*texts}) < len(texts)):
            shown = f"{VISIBLE}={os.environ[VISIBLE]}" if VISIBLE in os.environ else "this machine"
            raise StageError(f"--gpus {gpus} does not name different GPUs: {shown} shows "
                             f"{counted(len(visible), 'GPU')}. Say all, or numbers from 0 on, as 0,1.")
        numbers = [int(text) for text in texts]
    return [Device(f"GPU {number}", visible[number]) for number in numbers]


class Crew:
    """Which devices sample and which train: all do both; with `split` the first sample and the others train.

    `split` is the number of devices that sample; 0 starts with half and follows the measured times.
    `span` devices make an engine (`--tensor-parallel-size`); `sharing` holds variables to shard the weights.
    If all are `awake`, engines and trainers have room next to each other and keep their memory.
    """

    def __init__(self, devices: Sequence[Device], *, span: int = 1, split: int | None = None,
                 awake: bool = False, sharing: Mapping[str, str] | None = None) -> None:
        if len(devices) < span:
            raise StageError(f"An engine spans {span} GPUs (tensor-parallel-size), and {len(devices)} are "
                             "there. Lower it, or name more by --gpus.")
        self.devices, self.span, self.sharing = [*devices], span, sharing or {}
        if split and (split % span or not 0 < split < len(devices)):
            raise StageError(f"--split {split} leaves no GPU to train or no whole engine: {len(devices)} are "
                             f"there, and an engine spans {span}. Say another number, or adapt.")
        self.is_split = split is not None and len(devices) > span
        self.adapts = self.is_split and not split           # then a device may change sides
        self.awake = {warm.AWAKE: "1"} if awake and not self.is_split else {}
        sampling = (split or len(devices) // 2) if self.is_split else len(devices)
        self.num_engines = max(1, sampling // span)
        self.failures = Counter[tuple[str, Device]]()       # by stage, since its last success there
        self.together: list[Device] = []        # the devices that train together over `port`
        self.port = 0

    def engines(self) -> list[Worker]:
        """The sampling processes: one engine per `span` devices."""
        devices = self._left(self.devices[:self.num_engines * self.span])
        groups = [tuple(devices[first:first + self.span])
                  for first in range(0, len(devices) - self.span + 1, self.span)]
        return [Worker(group, _visible(group) | self.awake)
                for group in groups or [tuple(self.devices[:self.span])]]

    def trainers(self) -> list[Worker]:
        """The training processes, rank by rank; they keep their process group until something changes."""
        devices = self._left(self.devices[self.num_engines * self.span:] if self.is_split else self.devices)
        devices = devices or self.devices[-1:]
        if len(devices) == 1 and not self.sharing:
            return [Worker((devices[0],), _visible(devices) | self.awake)]
        if devices != self.together:
            self.together, self.port = devices, _free_port()
        common = {**_visible(devices), **self.sharing, **self.awake, "WORLD_SIZE": str(len(devices)),
                  "LOCAL_WORLD_SIZE": str(len(devices)), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(self.port)}
        return [Worker((device,), {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                for rank, device in enumerate(devices)]

    def note_end(self, worker: Worker, stage: str, *, well: bool) -> None:
        """Count how often in a row a stage has failed on the devices of a process."""
        for device in worker.devices:
            self.failures[stage, device] = 0 if well else self.failures[stage, device] + 1

    def is_left_out(self, worker: Worker) -> bool:
        return len(self._left(worker.devices)) < len(worker.devices)

    def adapt(self, sampling: float, training: float) -> bool:
        """Move the split according to the seconds of the last iteration; return whether it moved."""
        if not self.adapts:
            return False
        before = self.num_engines
        self.num_engines = better_split(len(self.devices), before, sampling, training, self.span)
        return self.num_engines != before

    def _left(self, devices: Sequence[Device]) -> list[Device]:
        failing = {device for (_, device), count in self.failures.items() if count >= MOST_FAILURES}
        return [device for device in devices if device not in failing]


def better_split(num_devices: int, num_engines: int, sampling: float, training: float, span: int = 1) -> int:
    """How many engines should sample while the other devices train: the current number, or one more or less.

    `sampling` and `training` are seconds of an iteration in the current split. They run at the same time, so
    an iteration takes the longer of them, and each takes time in inverse proportion to its devices.
    """
    def seconds(engines: int) -> float:
        trainers = num_devices - engines * span
        return max(sampling * num_engines / engines, training * (num_devices - num_engines * span) / trainers)

    others = [engines for engines in (num_engines - 1, num_engines + 1)
              if engines > 0 and engines * span < num_devices]
    best = min(others, key=seconds, default=num_engines)
    return best if seconds(best) < (1 - LEAST_GAIN) * seconds(num_engines) else num_engines


def sharing_of(config: Path | None) -> dict[str, str]:
    """The variables that `accelerate launch --config_file` sets for a config of examples/many-gpus, or {}."""
    if config is None:
        return {}
    import yaml
    try:
        options = yaml.safe_load(config.read_text(encoding="utf-8"))["fsdp_config"]
        return {"ACCELERATE_USE_FSDP": "true", **{name.upper(): str(value).lower() for name, value in
                                                  options.items() if name.upper() in warm.PLACE}}
    except (yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
        raise StageError(f"{config} has no fsdp_config. Name a config as in examples/many-gpus.") from error


def _visible(devices: Sequence[Device]) -> dict[str, str]:
    names = [device.variable for device in devices if device.variable is not None]
    return {VISIBLE: ",".join(names)} if names else {}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
