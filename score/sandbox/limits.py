"""What one program may use; part of the scorer's identity, because other limits give other verdicts."""

from dataclasses import asdict, dataclass

from warehouse.store.errors import StageError

MOST = 1_000_000            # seconds, MiB or KiB; also excludes NaN


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program. CPU time decides, so that load does not change verdicts."""

    cpu_seconds: float = 1.0         # all grids, or all calls, of one program together
    wall_seconds: float = 5.0        # for programs that sleep; at least cpu_seconds
    memory_mib: int = 512            # address space above that of the empty process
    output_kib: int = 64             # the answer, or the stdout of a script

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value <= MOST:
                raise StageError(f"The limit {name} is {value}: it must be above 0 and at most {MOST}.")
        if self.wall_seconds < self.cpu_seconds:
            raise StageError(f"The limit wall_seconds ({self.wall_seconds:g}) is below cpu_seconds "
                             f"({self.cpu_seconds:g}): raise it, or the CPU limit can never be reached.")
        if self.output_kib > 64 * 1024:
            raise StageError(f"The limit output_kib is {self.output_kib}: at most 65536 (64 MiB).")
