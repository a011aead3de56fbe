"""The entries of a run's log: one frozen class per transition, and their JSON."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DERIVED = ("score", "logprobs")     # stages that go through a rollout: part i is of part i of its completions


@dataclass(frozen=True)
class Made:
    """The run is made. `facts` is warehouse.json, `old` the entries that stand for a run without a log."""

    facts: dict[str, Any]
    old: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Begun:
    """A stage of an iteration begins: its settings are fixed, and its generation is named after this entry.

    `scorer` names the model of a stage logprobs. `reads` are the begin entries of the stages whose rows or
    policies it uses, and `rows` is the folder of those that it goes through, part by part. `taken` are groups
    of earlier rollouts that the plan of this one goes on with. `folder` is given for old runs alone.
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
    """A setting of a stage under way was changed on purpose."""

    generation: int
    setting: str
    before: Any
    now: Any


@dataclass(frozen=True)
class Completed:
    """A stage is complete. `reads` as in Begun, `manifest` is the sha256 of its manifest.json.

    `facts` are what the state needs of it: `carried` (groups left to the next rollout), `scorer`, `waiting`
    and `policy` (folder below policies/) of a training, `rolled_back_to` of an iteration that an old run left
    out.
    """

    generation: int
    reads: list[int] = field(default_factory=list)
    manifest: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Discarded:
    """Generations are rows of the run no more, nor is what was made from them."""

    generations: list[int]


@dataclass(frozen=True)
class RolledBack:
    """An earlier policy is the newest one again; optimizer steps are counted on from those of the newest.

    `why` are the words of whoever went back: of a loop the alarms.
    """

    to: int
    global_step: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Rewritten:
    """Generations have other folders: their parts were merged, pruned or repaired.

    For each the names of its `former` and its new `folder` and, where these change, `open` (its stage has to
    run again), `pruned` and `lost` (names of parts).
    """

    why: str
    generations: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class TasksChanged:
    """Tasks were added or replaced: where the table lies now, its hash, and what was done."""

    folder: str
    sha256: str
    former: str | None                      # the hash before
    change: dict[str, Any]


@dataclass(frozen=True)
class WeightsDropped:
    """Of these policies policy.json alone is kept."""

    versions: list[int]


@dataclass(frozen=True)
class Branched:
    """The entries before are those of `run`, a run of its own begins here: at `policy`, as of its `entry`.

    What stands on later policies, or is under way, is not of this run; with `rows` what its policies sampled
    from iteration `policy` on is, and up to iteration `through` what the later policies of `run` sampled to
    train on. `run_id` is its own.
    """

    run: str
    run_id: str
    entry: int
    policy: int
    rows: bool = False
    through: int | None = None


@dataclass(frozen=True)
class OldPolicy:
    """A policy of an old run, which lies in policies/VERSION."""

    version: int
    facts: dict[str, Any]


Transition = (Made | Begun | Changed | Completed | Discarded | RolledBack | Rewritten | TasksChanged
              | WeightsDropped | Branched | OldPolicy)
KINDS: dict[str, type] = {"made": Made, "begun": Begun, "changed": Changed, "completed": Completed,
                          "discarded": Discarded, "rolled back": RolledBack, "rewritten": Rewritten,
                          "tasks changed": TasksChanged, "weights dropped": WeightsDropped,
                          "branched": Branched, "old policy": OldPolicy}
NAMES = {kind: name for name, kind in KINDS.items()}
FIELDS = {kind: {each.name for each in fields(kind)} for kind in KINDS.values()}


@dataclass(frozen=True)
class Entry:
    """A transition and where it stands in the log, when (seconds since 1970), where and by which command."""

    number: int
    what: Transition
    at: float = 0.0
    host: str = ""
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is stored, without what binds it to the entry before."""
        return {"number": self.number, "kind": NAMES[type(self.what)], "at": self.at, "host": self.host,
                "command": self.command, "what": asdict(self.what)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Entry":
        """ValueError for what no version up to this one writes."""
        try:
            kind = KINDS[stored["kind"]]
            what = kind(**{name: value for name, value in stored["what"].items() if name in FIELDS[kind]})
            return cls(int(stored["number"]), what, float(stored["at"]), str(stored["host"]),
                       str(stored["command"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error} in {json.dumps(stored)[:100]}") from error
