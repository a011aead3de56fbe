"""What one program may use; part of the scorer's identity, because other limits give other verdicts."""

from dataclasses import asdict, dataclass

from warehouse.store.errors import StageError

MIN_OPEN_FILES = 24         # what the lane itself holds while a program runs
MOST = 1_000_000            # seconds, MiB, KiB or files; NaN is not at most this either


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program. CPU time decides, so that load does not change verdicts."""

    cpu_seconds: float = 1.0         # all grids, or all calls, of one program together
    wall_seconds: float = 5.0        # for programs that sleep; at least cpu_seconds
    memory_mib: int = 512            # address space above that of the empty process
    open_files: int = 32
    output_kib: int = 64             # the answer, and what is printed where that is the answer
    source_kib: int = 64
    threads: bool = False            # whether threads may be started; processes never may

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "threads" and not 0 < value <= MOST:
                raise StageError(f"The limit {name} is {value}: it must be above 0 and at most {MOST}.")
        if self.wall_seconds < self.cpu_seconds:
            raise StageError(f"The limit wall_seconds ({self.wall_seconds:g}) is below cpu_seconds "
                             f"({self.cpu_seconds:g}): raise it, or the CPU limit can never be reached.")
        if self.open_files < MIN_OPEN_FILES:
            raise StageError(f"The limit open_files is {self.open_files}: running a program takes "
                             f"at least {MIN_OPEN_FILES}.")
        if self.output_kib > 64 * 1024:
            raise StageError(f"The limit output_kib is {self.output_kib}: at most 65536 (64 MiB).")
