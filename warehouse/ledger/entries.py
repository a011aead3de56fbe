"""The entries of a run's log: one frozen class per transition, and their JSON."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DERIVED = ("score", "logprobs")     # stages over a rollout: part i belongs to part i of its completions


@dataclass(frozen=True)
class Made:
    """The run is made. `facts` is warehouse.json, `old` are entries that represent a run without a log."""

    facts: dict[str, Any]
    old: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Begun:
    """A stage of an iteration begins: its settings are fixed, and its generation gets this entry's number.

    `scorer` names the model of a stage logprobs. `reads` are the begin entries of the rows and policies that
    it uses, and `rows` is the folder of the parts that it processes. `taken` are groups of earlier
    rollouts that the plan continues. `folder` is set only for old runs.
    """

    stage: str
    iteration: int
    purpose: str | None
    scorer: str | None
    settings: dict[str, Any]
    reads: list[int] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    folder: str | None = None
    rows: str | None = None


@dataclass(frozen=True)
class Changed:
    """A setting of an unfinished stage was changed on purpose."""

    generation: int
    setting: str
    before: Any
    now: Any


@dataclass(frozen=True)
class Worked:
    """A process left a stage that is not complete: after how many seconds, and why."""

    generation: int
    seconds: float
    why: str


@dataclass(frozen=True)
class Completed:
    """A stage is complete. `manifest` is the sha256 of its manifest.json.

    `facts` are those that the state needs: `seconds` of the process, `carried` (groups left to the next
    rollout), `scorer`, `waiting` and `policy` (folder below policies/) of a training, `rolled_back_to` of an
    iteration that an old run left out.
    """

    generation: int
    manifest: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Discarded:
    """Generations, and what was made from them, no longer belong to the run."""

    generations: list[int]


@dataclass(frozen=True)
class RolledBack:
    """An earlier policy becomes the newest again; optimizer steps continue to count from the newest's.

    All later learning rates are multiplied by `rate`.
    """

    to: int
    global_step: int | None = None
    why: str = ""
    rate: float = 1.0


@dataclass(frozen=True)
class Alarmed:
    """A loop ended at an alarm of this generation's iteration: the next one judges later iterations."""

    generation: int
    signals: list[str]


@dataclass(frozen=True)
class Rewritten:
    """Generations moved to other folders: their parts were merged, pruned or repaired.

    For each: the names of its `former` and its new `folder` and, if these change, `open` (its stage has to
    run again), `pruned` and `lost` (names of parts).
    """

    why: str
    generations: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TasksChanged:
    """Tasks were added or replaced: the new folder of the table, its hash, and what was done."""

    folder: str
    sha256: str
    former: str | None                      # the hash before
    change: dict[str, Any]


@dataclass(frozen=True)
class WeightsDropped:
    """Only policy.json of these policies is kept."""

    versions: list[int]


@dataclass(frozen=True)
class Branched:
    """The entries before belong to `run`; a new run begins here, at `policy`, as of its entry `entry`.

    Stages that depend on later policies, or are unfinished, do not belong to this run. With `rows`, rows that
    its policies sampled from iteration `policy` on do, and up to iteration `through` also training rows that
    later policies of `run` sampled. `run_id` is the new run's.
    """

    run: str
    run_id: str
    entry: int
    policy: int
    rows: bool = False
    through: int | None = None


@dataclass(frozen=True)
class OldPolicy:
    """A policy of an old run, in policies/VERSION."""

    version: int
    facts: dict[str, Any]


Transition = (Made | Begun | Changed | Worked | Completed | Discarded | RolledBack | Alarmed | Rewritten
              | TasksChanged | WeightsDropped | Branched | OldPolicy)
KINDS: dict[str, type] = {"made": Made, "begun": Begun, "changed": Changed, "worked": Worked,
                          "completed": Completed,
                          "discarded": Discarded, "rolled back": RolledBack, "alarmed": Alarmed,
                          "rewritten": Rewritten, "tasks changed": TasksChanged,
                          "weights dropped": WeightsDropped, "branched": Branched, "old policy": OldPolicy}
NAMES = {kind: name for name, kind in KINDS.items()}
FIELDS = {kind: {each.name for each in fields(kind)} for kind in KINDS.values()}


@dataclass(frozen=True)
class Entry:
    """A transition with its number in the log, its time (seconds since 1970), its host and its command."""

    number: int
    what: Transition
    at: float = 0.0
    host: str = ""
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is stored, without the hash of the previous entry."""
        return {"number": self.number, "kind": NAMES[type(self.what)], "at": self.at, "host": self.host,
                "command": self.command, "what": asdict(self.what)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Entry":
        """ValueError for an entry that no version up to this one writes."""
        try:
            kind = KINDS[stored["kind"]]
            what = kind(**{name: value for name, value in stored["what"].items() if name in FIELDS[kind]})
            return cls(int(stored["number"]), what, float(stored["at"]), str(stored["host"]),
                       str(stored["command"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error} in {json.dumps(stored)[:100]}") from error
