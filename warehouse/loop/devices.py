"""The GPUs of this machine that a loop works with: which of them sample and which train, and since when."""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warehouse.stages import warm
from warehouse.store.errors import StageError

MOST_FAILURES = 2               # of a stage on a GPU, one after the other, after which that is left out
LEAST_GAIN = 0.1                # share of an iteration that a move has to save: it starts processes anew
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Device(NamedTuple):
    """A GPU, or what tests on a CPU have in its place."""

    name: str                   # as sentences have it
    variable: str | None        # how CUDA_VISIBLE_DEVICES names it; None leaves that as it is


class Worker(NamedTuple):
    """A process of a stage: the devices that it has, and the variables that give it these."""

    devices: tuple[Device, ...]
    place: Mapping[str, str]

    @property
    def name(self) -> str:
        return " and ".join(device.name for device in self.devices)


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    nodes = sorted(int(path.name.removeprefix("nvidia")) for path in Path("/dev").glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(nodes))]


def chosen_devices(gpus: str, cpus: int | None = None) -> list[Device]:
    """What `--gpus` says: 'all', or numbers among the GPUs that this process sees, as torch counts them.

    StageError for one that is not there. Where there is none it is the CPU; `cpus` says how many workers that
    has.
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
            raise StageError(f"--gpus {gpus} does not name different GPUs of this machine, which shows "
                             f"{len(visible)}. Say all, or numbers from 0 on, as 0,1.")
        numbers = [int(text) for text in texts]
    return [Device(f"GPU {number}", visible[number]) for number in numbers]


class Crew:
    """Which devices sample and which train: all do both, or with `split` the first sample, the others train.

    `span` devices make an engine (`--tensor-parallel-size`); by `sharing` (variables) trainers share weights.
    Engines that stay `awake` keep their memory while others train.
    """

    def __init__(self, devices: Sequence[Device], *, span: int = 1, split: bool = False,
                 awake: bool = False, sharing: Mapping[str, str] | None = None) -> None:
        if len(devices) < span:
            raise StageError(f"An engine spans {span} GPUs (tensor-parallel-size), and {len(devices)} are "
                             "there. Lower it, or name more by --gpus.")
        self.devices, self.span, self.sharing = [*devices], span, sharing or {}
        self.awake = {warm.AWAKE: "1"} if awake else {}
        self.is_split = split and len(devices) > span
        self.num_engines = max(1, len(devices) // (2 * span) if self.is_split else len(devices) // span)
        self.failures = Counter[tuple[str, Device]]()       # by stage, since it last ended well there
        self.together: list[Device] = []        # who trains by `port`
        self.port = 0

    def engines(self) -> list[Worker]:
        """Who samples: one engine per `span` devices."""
        devices = self._left(self.devices[:self.num_engines * self.span])
        groups = [tuple(devices[first:first + self.span])
                  for first in range(0, len(devices) - self.span + 1, self.span)]
        return [Worker(group, _visible(group) | self.awake)
                for group in groups or [tuple(self.devices[:self.span])]]

    def trainers(self) -> list[Worker]:
        """Who trains together, rank by rank; as long as nothing changes they find each other once."""
        devices = self._left(self.devices[self.num_engines * self.span:] if self.is_split else self.devices)
        devices = devices or self.devices[-1:]
        if len(devices) == 1 and not self.sharing:
            return [Worker((devices[0],), _visible(devices))]
        if devices != self.together:
            self.together, self.port = devices, _free_port()
        common = {**_visible(devices), **self.sharing, "WORLD_SIZE": str(len(devices)),
                  "LOCAL_WORLD_SIZE": str(len(devices)), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(self.port)}
        return [Worker((device,), {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                for rank, device in enumerate(devices)]

    def note_end(self, worker: Worker, stage: str, *, well: bool) -> None:
        """Count how often in a row a stage has failed on the devices of a process."""
        for device in worker.devices:
            self.failures[stage, device] = 0 if well else self.failures[stage, device] + 1

    def part(self) -> None:
        """Have those who train find each other anew, in new processes."""
        self.together = []

    def is_left_out(self, worker: Worker) -> bool:
        """Whether a device has failed so often that it is left out from now on."""
        return len(self._left(worker.devices)) < len(worker.devices)

    def adapt(self, sampling: float, training: float) -> bool:
        """Move the split towards what the seconds of the last iteration say; whether it moved."""
        if not self.is_split:
            return False
        before = self.num_engines
        self.num_engines = better_split(len(self.devices), before, sampling, training, self.span)
        return self.num_engines != before

    def _left(self, devices: Sequence[Device]) -> list[Device]:
        failing = {device for (_, device), count in self.failures.items() if count >= MOST_FAILURES}
        return [device for device in devices if device not in failing]


def better_split(num_devices: int, num_engines: int, sampling: float, training: float, span: int = 1) -> int:
    """How many engines should sample while the other devices train: the number now, or one more or less.

    `sampling` and `training` are seconds of an iteration as it is split now. They work at the same time, so
    that an iteration takes the longer of them, and each takes time in inverse proportion to its devices.
    """
    def seconds(engines: int) -> float:
        trainers = num_devices - engines * span
        return max(sampling * num_engines / engines, training * (num_devices - num_engines * span) / trainers)

    others = [engines for engines in (num_engines - 1, num_engines + 1)
              if engines > 0 and engines * span < num_devices]
    best = min(others, key=seconds, default=num_engines)
    return best if seconds(best) < (1 - LEAST_GAIN) * seconds(num_engines) else num_engines


def sharing_of(config: Path | None) -> dict[str, str]:
    """What `accelerate launch --config_file` makes of a config as in examples/many-gpus; {} without one."""
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
