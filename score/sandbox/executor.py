"""Running programs: equal programs once, with an outcome that they share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from score.protocol.error_classes import ErrorClass
from score.sandbox.outcomes import outcome_of
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome, Program

CACHED_BYTES = 256 * 2**20      # of outcomes cached across the parts of a stage
OVERHEAD_BYTES = 1024
SOURCE_KIB = 64                 # of a program


@dataclass
class Executor:
    """A pool of lanes with a memory of what it ran."""

    pool: LanePool
    isolated: bool = True
    outcomes: dict[bytes, tuple[Outcome, int]] = field(default_factory=dict)       # with their size
    cached_bytes: int = 0
    num_run: int = 0             # programs run, not taken from the cache

    def run(self, programs: Iterable[Program | None],
            finished: Callable[[Outcome], None] = lambda _outcome: None) -> list[Outcome]:
        """The outcome of each program; `finished` hears of each that was run, as it ends.

        Programs may come while others run; None among them says that there is none at the moment.
        """
        asked: list[Program] = []
        known: dict[bytes, Outcome] = {}
        waiting: list[Program] = []
        ended: dict[bytes, int] = {}         # bytes of each outcome
        for index, endings in self.pool.run(self._new(programs, asked, known, waiting)):
            program = waiting[index]
            outcome = outcome_of(program, endings, self.pool.limits, isolated=self.isolated)
            self.num_run += 1
            known[program.key] = outcome
            ended[program.key] = sum(len(ending.result) + len(ending.stdout or b"") for ending in endings)
            finished(outcome)
        known |= self._follow_up([program for program in waiting if program.then], known, finished)
        for key, num_bytes in ended.items():
            self._remember(key, known[key], num_bytes)
        return [known[program.key] for program in asked]

    def _new(self, programs: Iterable[Program | None], asked: list[Program], known: dict[bytes, Outcome],
             waiting: list[Program]) -> Iterator[Program | None]:
        """Yield the programs that must run; note each in `asked`, and those in `waiting`."""
        distinct, most = set[bytes](), SOURCE_KIB * 1024
        for program in programs:
            if program is None:
                yield None
                continue
            asked.append(program)
            if program.key in self.outcomes:
                known[program.key] = self.outcomes[program.key][0]
            elif len(program.source_bytes) > most:
                message = f"{len(program.source_bytes)} bytes of source, at most {most}"
                known[program.key] = Outcome(error_class=ErrorClass.SOURCE_TOO_LARGE, error_message=message)
            elif program.key not in distinct:
                distinct.add(program.key)
                waiting.append(program)
                yield program

    def _follow_up(self, programs: list[Program], known: dict[bytes, Outcome],
                   finished: Callable[[Outcome], None]) -> dict[bytes, Outcome]:
        """Run the follow-ups of these programs; return their final outcomes."""
        plans = [each.then.program(known[each.key]) if each.then else None for each in programs]
        later = iter(self.run(filter(None, plans), finished) if any(plans) else ())
        return {program.key: program.then.settle(known[program.key], next(later) if plan else None)
                for program, plan in zip(programs, plans, strict=True) if program.then}

    def _remember(self, key: bytes, outcome: Outcome, num_bytes: int) -> None:
        """Cache an outcome for later parts, unless infrastructure failed."""
        if outcome.infrastructure:
            return
        self.outcomes[key] = outcome, OVERHEAD_BYTES + num_bytes
        self.cached_bytes += OVERHEAD_BYTES + num_bytes
        while self.cached_bytes > CACHED_BYTES:
            self.cached_bytes -= self.outcomes.pop(next(iter(self.outcomes)))[1]
