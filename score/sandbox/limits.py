"""What one program may use; part of the scorer's identity, because other limits give other verdicts."""

from dataclasses import asdict, dataclass

from warehouse.fields import option
from warehouse.store.errors import StageError

MOST = 1_000_000            # seconds, MiB or KiB; NaN is not at most this either


@dataclass(frozen=True)
class Limits:
    """Limits of one program. CPU time decides, so that load does not change verdicts."""

    cpu_seconds: float = option(1.0, "CPU time of a program, all inputs together.",
                                group="Limits of a program")
    wall_seconds: float = option(None, "Wall time of a program. [default: 5 x CPU]")
    memory_mib: int = option(512, "Memory of a program on top of an empty process.")
    output_kib: int = option(64, "Size of a program's answer.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "wall_seconds", self.wall_seconds or 5 * self.cpu_seconds)
        for name, value in asdict(self).items():
            if not 0 < value <= MOST:
                raise StageError(f"The limit {name} is {value}: it must be above 0 and at most {MOST}.")
        if self.wall_seconds < self.cpu_seconds:
            raise StageError(f"The limit wall_seconds ({self.wall_seconds:g}) is below cpu_seconds "
                             f"({self.cpu_seconds:g}): raise it, or the CPU limit can never be reached.")
        if self.output_kib > 64 * 1024:
            raise StageError(f"The limit output_kib is {self.output_kib}: at most 65536 (64 MiB).")
