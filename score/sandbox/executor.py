"""Running programs: equal programs once, with an outcome that they share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from score.protocol.error_classes import ErrorClass
from score.sandbox.outcomes import outcome_of
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome, Part, Program, Whole

Finished = Callable[[Outcome], None]
CACHED_BYTES = 256 * 2**20      # of outcomes cached across the parts of a stage
OVERHEAD_BYTES = 1024
SOURCE_KIB = 64                 # of a program


@dataclass
class Executor:
    """A pool of lanes with a memory of what it ran.

    Programs that may read their tests could tell others, by when they end, what they read: they run after all
    else that `run` is given.
    """

    pool: LanePool
    isolated: bool = True
    outcomes: dict[bytes, tuple[Outcome, int]] = field(default_factory=dict)       # with their size
    cached_bytes: int = 0
    num_run: int = 0             # programs run, not taken from the cache
    # By the key of a program that is not settled: what ran of it, and what follows, with their outcomes.
    under_way: dict[bytes, list[tuple[Program, Outcome]]] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)        # bytes of what these left

    def run(self, programs: Iterable[Program | None], finished: Finished = lambda _outcome: None, *,
            settles: bool = True) -> list[Outcome]:
        """The outcome of each program; `finished` hears of each that was run, as it ends.

        Programs may come while others run; None among them says that there is none at the moment. Unless it
        `settles`, programs that may read their tests are left to a later call, and nothing is returned.
        """
        asked: list[Program] = []
        known: dict[bytes, Outcome] = {}
        for program, outcome, num_bytes in self._run_each(self._new(programs, asked, known), finished):
            self.under_way[program.key], self.sizes[program.key] = [(program, outcome)], num_bytes
        keys = [key for key in dict.fromkeys(program.key for program in asked) if key in self.under_way]
        while self._go_on(keys, finished, lambda plan: not plan.reads_tests):
            pass
        if not settles:
            for key in keys:
                if any(outcome.infrastructure for _program, outcome in self.under_way[key]):
                    del self.under_way[key], self.sizes[key]              # it is run again
            return []
        for is_next in (lambda plan: isinstance(plan, Program), lambda plan: True):
            while self._go_on(keys, finished, is_next):
                pass
        for key in keys:
            known[key] = settled(self.under_way.pop(key))
            num_bytes = OVERHEAD_BYTES + self.sizes.pop(key)
            if not known[key].infrastructure:
                self.outcomes[key] = known[key], num_bytes
                self.cached_bytes += num_bytes
        while self.cached_bytes > CACHED_BYTES:
            self.cached_bytes -= self.outcomes.pop(next(iter(self.outcomes)))[1]
        return [known[program.key] for program in asked]

    def _new(self, programs: Iterable[Program | None], asked: list[Program],
             known: dict[bytes, Outcome]) -> Iterator[Program | None]:
        """Yield the programs that must run; note each in `asked`, and outcomes that are `known`."""
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
            elif program.key not in distinct and program.key not in self.under_way:
                distinct.add(program.key)
                yield program

    def _run_each(self, programs: Iterable[Program | None],
                  finished: Finished) -> Iterator[tuple[Program, Outcome, int]]:
        """Run programs, and give each with its outcome, without what follows, and the bytes that it left."""
        waiting: list[Program] = []

        def noted() -> Iterator[Program | None]:
            for program in programs:
                waiting.extend([program] if program else [])
                yield program
        for index, endings in self.pool.run(noted()):
            program = waiting[index]
            outcome = outcome_of(program, endings, self.pool.limits, isolated=self.isolated)
            self.num_run += 1
            finished(outcome)
            yield program, outcome, sum(len(each.result) + len(each.stdout or b"") for each in endings)

    def _go_on(self, keys: list[bytes], finished: Finished,
               is_next: Callable[[Program | Part], bool]) -> bool:
        """Run what follows each of these, where it is next; False if nothing is."""
        plans = {key: plan for key in keys if (plan := what_follows(self.under_way[key])) and is_next(plan)}
        places: dict[Whole, list[int]] = {}
        for plan in plans.values():
            if isinstance(plan, Part):
                places.setdefault(plan.whole, []).append(plan.place)
        wholes = {whole: whole.program(those) for whole, those in places.items()}
        programs = {key: wholes[plan.whole] if isinstance(plan, Part) else plan
                    for key, plan in plans.items()}
        distinct = {program.key: program for program in programs.values()}
        outcomes = {program.key: outcome
                    for program, outcome, _bytes in self._run_each(distinct.values(), finished)}
        for key, plan in plans.items():
            outcome = outcomes[programs[key].key]
            self.under_way[key].append((programs[key], plan.outcome(outcome, places[plan.whole])
                                        if isinstance(plan, Part) else outcome))
        return bool(plans)


def what_follows(chain: list[tuple[Program, Outcome]]) -> Program | Part | None:
    program, outcome = chain[-1]
    return program.then.program(outcome) if program.then else None


def settled(chain: list[tuple[Program, Outcome]]) -> Outcome:
    """The outcome of the first of these, in the light of what followed."""
    later = None
    for program, outcome in reversed(chain):
        later = program.then.settle(outcome, later) if program.then else outcome
    assert later is not None
    return later
