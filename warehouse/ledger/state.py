"""The state of a run, derived from its log, and all questions about it. Pure: no file, path or clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warehouse.ledger.entries import DERIVED, Alarmed, Begun, Completed, Discarded, Entry, Rewritten
from warehouse.ledger.refusals import Refusal
from warehouse.store.errors import counted
from warehouse.store.names import base_purpose, is_training, turn_of, turn_purpose

Key = tuple[str, int, str | None, str | None]       # stage, iteration, purpose, scorer or model
TRAIN = "train"                                     # the purpose of rows that are trained on and carried over
LATEST = "finished last"
CORRECTED = ("replaced", "code")        # of a scorer's settings: corrected tasks, the version of verdicts


@dataclass(frozen=True)
class Life:
    """One life of a stage, from its begin entry on; a stage discarded and begun again has another life.

    With its key alone it is one that has not begun, which has a title.
    """

    stage: str
    iteration: int
    purpose: str | None
    scorer: str | None
    begun: int = -1                                 # number of its begin entry, by which `reads` refers to it
    folder: str = ""                                # name behind `generation=`; '' in old runs
    settings: Mapping[str, Any] = field(default_factory=dict)
    reads: frozenset[int] = frozenset()
    taken: tuple[str, ...] = ()                     # groups of earlier rollouts that its plan continues
    changes: tuple[Mapping[str, Any], ...] = ()
    completed: int | None = None                    # number of the entry that completed it
    version: int = 0                                # number of the entry that last changed its rows
    facts: Mapping[str, Any] = field(default_factory=dict)
    pruned: bool = False
    compacted: bool = False                         # its parts were merged and no longer follow the plan
    lost: tuple[str, ...] = ()
    worked: float = 0.0                             # seconds of processes that left it before it was complete
    ended: int | None = None                        # number of the entry that ended it
    shared: int | None = None                       # in a branch: the last policy shared with the run that
                                                    # sampled these rows with a later one

    @property
    def key(self) -> Key:
        return self.stage, self.iteration, self.purpose, self.scorer

    @property
    def identity(self) -> dict[str, Any]:
        named = {"iteration": self.iteration, "purpose": self.purpose, "scorer": self.scorer}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def title(self) -> str:
        """Its name in messages, for example `score of iteration 3, purpose train, scorer exact-1`."""
        who = "model" if self.stage == "logprobs" else "scorer"
        keys = {"purpose": self.purpose, who: self.scorer}
        others = [f", {name} {value}" for name, value in keys.items() if value is not None]
        return f"{self.stage} of iteration {self.iteration}{''.join(others)}"

    @property
    def is_complete(self) -> bool:
        return self.completed is not None

    @property
    def sampled_by(self) -> int:
        """The policy that a rollout samples with; 0 for other stages and other models."""
        version = self.settings.get("policy_version", self.iteration) if self.stage == "rollout" else 0
        return version or 0

    @property
    def carried(self) -> list[str]:
        """Groups that a complete rollout left to the next one, in the order of its plan."""
        return list(self.facts.get("carried", [])) if self.is_complete else []


@dataclass(frozen=True)
class Policy:
    """A policy: the folder of its files, the training that wrote it, and the policy it is a copy of."""

    version: int
    folder: str                                     # below policies/
    trained: int | None = None                      # the begin entry of its training
    rolled_back_to: int | None = None
    waiting: bool = False                           # its training postponed the rows
    dropped: bool = False                           # only policy.json is left
    global_step: int | None = None                  # if it differs from that in policy.json
    rate: float = 1.0                               # factor of all later learning rates, by its rollback


class Due(NamedTuple):
    """The stage that comes next: 'rollout', 'score' or 'train', of an iteration and purpose."""

    stage: str
    iteration: int
    purpose: str


class Choice(NamedTuple):
    """One complete score, whether its rows count, and why."""

    iteration: int
    purpose: str
    scorer: str
    chosen: bool
    reason: str
    version: int                                    # entry that last changed its rows


@dataclass(frozen=True)
class RunState:
    """The state of a run after some entry of its log; made by `warehouse.ledger.fold`."""

    run: str                                        # as command lines name it
    facts: dict[str, Any]                           # warehouse.json
    lives: dict[int, Life]                          # all of them, by begin entry
    current: dict[Key, int]                         # begin entry of the current life
    policies: dict[int, Policy]
    left_out: dict[int, int]                        # iterations a rollback left untrained: its policy
    entries: dict[int, Entry]
    tasks_folder: str = ""                          # behind `generation=`; '' for the tasks of `init`
    tasks_sha256: str | None = None
    task_changes: tuple[Mapping[str, Any], ...] = ()
    head: int = -1                                  # number of the last entry

    # Lives ------------------------------------------------------------------------------------------------

    def life(self, stage: str, iteration: int, purpose: str | None = None,
             scorer: str | None = None) -> Life | None:
        """The current life of a stage; None if it never began, or was ended."""
        begun = self.current.get((stage, iteration, purpose, scorer))
        return None if begun is None else self.lives[begun]

    def of_stage(self, stage: str, iteration: int | None = None, purpose: str | None = None) -> list[Life]:
        """The current lives of a kind of stage, by iteration, purpose (training first) and scorer."""
        found = [self.lives[begun] for key, begun in self.current.items()
                 if key[0] == stage and iteration in (None, key[1]) and purpose in (None, key[2])]
        return sorted(found, key=lambda life: (life.iteration, *_place(life.purpose or TRAIN),
                                               life.scorer or ""))

    @property
    def unheeded(self) -> int:
        """The iteration after the last whose alarms ended a loop; 0 without any."""
        alarmed = (self.lives[entry.what.generation] for entry in self.entries.values()
                   if isinstance(entry.what, Alarmed))
        return max((life.iteration + 1 for life in alarmed if life.ended is None), default=0)

    def is_complete(self, stage: str, iteration: int, purpose: str | None = None,
                    scorer: str | None = None) -> bool:
        life = self.life(stage, iteration, purpose, scorer)
        return life is not None and life.is_complete

    def purposes(self, iteration: int) -> list[str]:
        """Purposes of an iteration's rollouts: 'train' first, then evaluations, each before its turns."""
        return [str(life.purpose) for life in self.of_stage("rollout", iteration)]

    def iterations(self, stage: str) -> list[int]:
        return sorted({life.iteration for life in self.of_stage(stage)})

    def turns(self, iteration: int, base: str = TRAIN) -> list[str]:
        """The purposes of all turns of a base purpose in one iteration, earlier turns first."""
        return [purpose for purpose in self.purposes(iteration) if base_purpose(purpose) == base]

    def derived(self, iteration: int, purpose: str) -> list[Life]:
        """Every score of a rollout and every model's logprobs, unfinished or complete."""
        return [life for stage in DERIVED for life in self.of_stage(stage, iteration, purpose)]

    def scorers(self, iteration: int, purpose: str) -> list[str]:
        """Scorers with a complete score of a rollout."""
        return [str(life.scorer) for life in self.of_stage("score", iteration, purpose) if life.is_complete]

    def readers(self, begun: int) -> list[Life]:
        """Current lives that use the rows or the policy of another."""
        return [self.lives[other] for other in self.current.values() if begun in self.lives[other].reads]

    def is_built_upon(self, life: Life | None) -> bool:
        """True for a scored rollout and a trained score, now perhaps open again: they were complete once."""
        return life is not None and any(
            reader.is_complete or self.is_built_upon(reader) for reader in self.readers(life.begun)
            if (life.stage, reader.stage) in (("rollout", "score"), ("score", "train")))

    @property
    def reopened(self) -> list[Life]:
        """Stages that a repair opened again, which a loop passes over."""
        return [life for stage in ("rollout", "score") for life in self.of_stage(stage)
                if not life.is_complete and self.is_built_upon(life)]

    # What is due ------------------------------------------------------------------------------------------

    def is_trained(self, iteration: int) -> bool:
        """Whether the training of an iteration is over, also if a rollback left it out."""
        return iteration in self.left_out or self.is_complete("train", iteration)

    def rollout_due(self) -> int:
        """The lowest iteration without a complete training rollout that is not trained either.

        The last complete one if it must be trained first, because there is no policy to continue with.
        """
        iteration = 0
        while iteration + 1 in self.policies and (
                self.is_complete("rollout", iteration, TRAIN) or self.is_trained(iteration)):
            iteration += 1
        return iteration

    def turn_due(self, base: str, turn: int) -> int:
        """The newest iteration in which the previous turn is complete; Refusal if there is none."""
        before = turn_purpose(base, turn - 1)
        complete = [life.iteration for life in self.of_stage("rollout", purpose=before) if life.is_complete]
        if not complete:
            raise Refusal("no_turn", run=self.run, before=before)
        return complete[-1]

    def train_due(self) -> int:
        """The lowest iteration that is not trained."""
        iteration = 0
        while self.is_trained(iteration):
            iteration += 1
        return iteration

    def due(self) -> Due:
        """The next stage of a loop; pruned rows cannot be scored."""
        for life in self.of_stage("rollout"):
            if life.is_complete and not life.pruned and not self.scorers(life.iteration, str(life.purpose)):
                return Due("score", life.iteration, str(life.purpose))
        trained = self.train_due()
        return (Due("train", trained, TRAIN) if self.scorers(trained, TRAIN)
                else Due("rollout", self.rollout_due(), TRAIN))

    def again(self, what: Life | Due) -> str:
        """The command that goes on with a stage; options of named evaluations and the like are in the log."""
        words = f"{what.stage.replace('logprobs', 'train logprobs')} {self.run} --iteration {what.iteration}"
        if what.stage == "score" and isinstance(what, Life) and len(
                self.of_stage("score", what.iteration, what.purpose)) > 1:
            return f"{words}, with the options of {what.scorer} in `warehouse log`"
        if what.stage == "rollout" and isinstance(what, Life) and (
                what.settings.get("tasks_sha256", self.tasks_sha256) != self.tasks_sha256):
            words += " --accept-change tasks_sha256"
        if what.stage != "rollout" or what.purpose == TRAIN:
            return words
        return words + (" --eval" if what.purpose == "eval" else
                        ", with the options that `warehouse log` has")

    def check_begun(self, iteration: int | None) -> None:
        """Refusal if nothing of a named iteration has begun."""
        if iteration is not None and all(iteration not in self.iterations(stage)
                                         for stage in ("rollout", "train")):
            raise Refusal("no_iteration", run=self.run, iteration=iteration)

    # Policies ---------------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        return max(self.policies)

    @property
    def versions(self) -> list[int]:
        return sorted(self.policies)

    @property
    def kept(self) -> str:
        """The policies that have weights, in words."""
        versions = [str(version) for version in self.versions if not self.policies[version].dropped]
        return ", ".join(versions if len(versions) < 10 else [*versions[:3], "..", *versions[-3:]])

    def trained_purpose(self, iteration: int) -> str:
        """The purpose of the rows that an iteration trains on: 'train', or a distillation set."""
        life = self.life("train", iteration)
        return str(life.settings.get("purpose", TRAIN)) if life else TRAIN

    def is_sampled(self, version: int) -> bool:
        """Whether a rollout of a policy has begun, in any iteration."""
        return any(version in (life.iteration, life.settings.get("policy_version"))
                   for life in self.of_stage("rollout"))

    def is_given_up(self, life: Life) -> bool:
        """Whether a rollback left these rows untrained, so that nothing is left to finish."""
        return life.iteration in self.left_out and is_training(life.purpose or "")

    def is_left_out(self, iteration: int) -> bool:
        """Whether its training is over without its rows: a rollback left it out, or it trained another's."""
        life = self.life("train", iteration)
        return iteration in self.left_out or (
            life is not None and life.is_complete and self.trained_purpose(iteration) != TRAIN)

    def is_pruned(self, iteration: int) -> bool:
        """Whether training rows of an iteration have lost their tokens."""
        return any(life.pruned for life in self.of_stage("rollout", iteration)
                   if is_training(str(life.purpose)))

    def waiting_iterations(self, iteration: int) -> list[int]:
        """The iterations right before that passed their policy on unchanged to gather more groups.

        Those before a rollback no longer wait: the policy it went to may have waited itself.
        """
        first = iteration
        while (first and (policy := self.policies.get(first)) and policy.waiting
               and policy.rolled_back_to is None):
            first -= 1
        return list(range(first, iteration))

    def given_up_iterations(self, iteration: int) -> set[int]:
        """Earlier iterations that a rollback left behind: their policies are not ancestors of this one's."""
        left_behind, version = set[int](), iteration
        while version > 0:
            policy = self.policies.get(version)
            to = policy.rolled_back_to if policy else None
            left_behind.update(range(version if to is None else to + 1, version))
            version = version - 1 if to is None else to
        return left_behind

    def num_rollbacks(self, iteration: int) -> int:
        """The number of rollbacks up to the policy that an iteration starts from."""
        return sum(policy.rolled_back_to is not None and version <= iteration
                   for version, policy in self.policies.items())

    def rate(self, iteration: int) -> float:
        """By which rollbacks multiplied the learning rate of an iteration."""
        return math.prod(policy.rate for version, policy in self.policies.items() if version <= iteration)

    # Groups that later iterations continue ----------------------------------------------------------------

    def taken_groups(self, after: int, *, complete: bool = False) -> dict[str, int]:
        """Groups that the iterations after this one continued, each with the last iteration that has it.

        A plan does not count if its iteration was left out of training before it was sampled. With `complete`
        only groups of complete rollouts count.
        """
        taken: dict[str, int] = {}
        for life in self.of_stage("rollout", purpose=TRAIN):
            if life.iteration > after and (
                    life.is_complete or not (complete or self.is_left_out(life.iteration))):
                taken |= dict.fromkeys(life.taken, life.iteration)
        return taken

    def carried_groups(self, iteration: int) -> list[str]:
        """Groups that the complete training rollout of an iteration left unfinished."""
        life = self.life("rollout", iteration, TRAIN)
        return life.carried if life else []

    def waiting_groups(self, before: int, *, complete: bool = False,
                       own: bool = False) -> dict[int, list[str]]:
        """Groups carried over by earlier iterations that no later plan has taken, by iteration.

        With `own`, also those that iteration `before` took: a kill may come before its plan is stored.
        """
        carried = {life.iteration: life.carried for life in self.of_stage("rollout", purpose=TRAIN)
                   if life.iteration < before and life.carried}
        taken = self.taken_groups(min(carried), complete=complete) if carried else {}
        waiting = {iteration: [group for group in groups if taken.get(group, 0) <= iteration
                               or (own and taken[group] == before)]
                   for iteration, groups in carried.items()}
        return {iteration: groups for iteration, groups in waiting.items() if groups}

    def gone_on_with(self, iteration: int, groups: Iterable[str]) -> dict[str, int]:
        """Those of the groups that an earlier iteration began, each with the last that carried it over."""
        unknown = {group for group in groups if not group.startswith(f"{iteration}/")}
        origins: dict[str, int] = {}
        for life in self.of_stage("rollout", purpose=TRAIN):
            if life.iteration < iteration:
                origins |= dict.fromkeys(unknown.intersection(life.carried), life.iteration)
        return origins

    def check_not_given_up(self, iteration: int, groups: Iterable[str]) -> None:
        """Refusal if a plan was given up and a later iteration continued groups that it had taken."""
        if self.is_left_out(iteration):
            taken = self.taken_groups(iteration)
            for group in {*groups}.difference(self.carried_groups(iteration)) & taken.keys():
                raise Refusal("given_up", iteration=iteration, number=taken[group])

    # Scorers ----------------------------------------------------------------------------------------------

    def scorer_choices(self, named: str | None, sound: Collection[tuple[int, str, str]]) -> list[Choice]:
        """Every complete, sound score, with one chosen per rollout. `named` is config.toml's scorer.

        None takes the place of a chosen one that is damaged or open again.
        """
        choices = []
        for rollout in {(life.iteration, str(life.purpose)): None for life in self.of_stage("score")}:
            known = [life for life in self.of_stage("score", *rollout)
                     if life.is_complete or self.is_built_upon(life)]
            if known:
                scorer, reason = self._choose(known, named)
                choices += [Choice(*rollout, str(life.scorer), life.scorer == scorer,
                                   reason if life.scorer == scorer else "", life.version)
                            for life in known if (*rollout, str(life.scorer)) in sound]
        return choices

    def choose_scorer(self, iteration: int, purpose: str, name: str | None,
                      named: str | None = None) -> tuple[str, str]:
        """The scorer of a rollout whose rows count, and why: one of `name`, else as in `scorer_choices`."""
        complete = [life for life in self.of_stage("score", iteration, purpose) if life.is_complete]
        keys = {"iteration": iteration, "purpose": purpose, "run": self.run}
        if not complete:
            raise Refusal("not_scored", **keys)
        if name and not any(is_named(str(life.scorer), name) for life in complete):
            raise Refusal("other_scorers", **keys, name=name,
                          known=", ".join(sorted(str(life.scorer) for life in complete)))
        return self._choose(complete, name or named)

    def _choose(self, complete: list[Life], named: str | None) -> tuple[str, str]:
        """One of the scores of a rollout, and why: named, trained on, or finished last, in this order."""
        latest_first = sorted(complete, key=lambda life: (life.scorer != named, -(life.completed or 0)))
        for life in latest_first if named else []:
            if is_named(str(life.scorer), named or ""):
                return str(life.scorer), "named in config.toml"
        known = {life.scorer for life in complete}
        for training in reversed(self.of_stage("train")):
            scorer = training.facts.get("scorer")
            if training.is_complete and training.iteration <= complete[0].iteration and scorer in known:
                return str(scorer), f"iteration {training.iteration} was trained on its rewards"
        asked = [(str(life.scorer).rpartition("-")[0],
                  {name: value for name, value in life.settings.items() if name not in CORRECTED})
                 for life in complete]
        return str(latest_first[0].scorer), (
            "the only one" if len(complete) == 1 else
            LATEST if any(each != asked[0] for each in asked) else "the latest of this reward")

    def change_of_scorer(self, iteration: int, scorer: str) -> tuple[str, str]:
        """A line if the training before an iteration used the rewards of another scorer, else empty.

        And the tasks that were replaced in between, empty if none was.
        """
        trained = [life for life in self.of_stage("train")
                   if life.iteration < iteration and life.facts.get("scorer")]
        if not trained or (former := trained[-1].facts["scorer"]) == scorer:
            return "", ""
        judged = {life.scorer: life.settings.get("replaced", {}) for life in self.of_stage("score")}
        before, now = judged.get(former, {}), judged.get(scorer, {})
        names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        shown = ", ".join(names[:3]) + (" .." if names[3:] else "")
        return (f"rewards are those of {scorer}; iteration {trained[-1].iteration} was trained on those of "
                f"{former}", f"{counted(len(names), 'replaced task')} ({shown})" if names else "")

    # Tasks ------------------------------------------------------------------------------------------------

    @property
    def replaced_payloads(self) -> dict[str, str]:
        """For every replaced task, the hash of its current payload."""
        return {name: facts["payload_sha256"] for change in self.task_changes
                for name, facts in change.get("replaced", {}).items()}

    def former_task(self, task: Mapping[str, Any], score: Life) -> dict[str, Any] | None:
        """A task as a score judged it, by its row of today; None if its answers are judged the same today."""
        name = task["task_id"]
        changes = [change["replaced"][name] for change in self.task_changes
                   if name in change.get("replaced", {})]
        hashes = [None, *(facts["payload_sha256"] for facts in changes)]
        later = changes[hashes.index(score.settings.get("replaced", {}).get(name)):]
        then = {**task, **later[0]["before"]} if later else {**task}
        return None if all(then[key] == task[key] for key in ("kind", "payload")) else then

    def split_of_eval(self, tasks: Iterable[Mapping[str, Any]]) -> str | None:
        """The held-out split evaluated as `eval`: the run's first, unless it got several at once.

        So a curve continues when another split is added. `tasks` have task_id, split and heldout.
        """
        added = {task_id: number for number, change in enumerate(self.task_changes, start=1)
                 for task_id in change.get("added", [])}
        splits: dict[int, set[str]] = {}
        for task in tasks:
            if task["heldout"]:
                splits.setdefault(added.get(task["task_id"], 0), set()).add(task["split"])
        first = splits[min(splits)] if splits else set()
        return next(iter(first)) if len(first) == 1 else None

    # What is allowed --------------------------------------------------------------------------------------

    def to_discard(self, iteration: int, purpose: str | None) -> list[Life]:
        """Lives that end with a rollout or unfinished training (`purpose` None); none if already discarded.

        Refusal if they may not end.
        """
        training = self.life("train", iteration)
        keys = {"iteration": iteration, "run": self.run}
        rollout = None if purpose is None else self.life("rollout", iteration, purpose)
        feeds = purpose is None or is_training(purpose) or purpose == self.trained_purpose(iteration)
        if feeds:
            if iteration in self.left_out:
                raise Refusal("left_out", **keys)
            if (training and training.is_complete) or iteration + 1 in self.policies:
                raise Refusal("trained", **keys, policy=iteration + 1)
        doomed = [life for life in (rollout, training if feeds else None) if life]
        if not doomed:
            self.check_discarded("rollout" if purpose else "train", iteration, purpose)
        return doomed

    def check_discarded(self, stage: str, iteration: int, purpose: str | None, scorer: str = "") -> None:
        """Refusal unless a discard ended such a life: the repeated command has already done its work."""
        ends = [self.entries[life.ended].what for life in self.lives.values() if life.ended is not None
                and life.stage == stage and (life.iteration, life.purpose) == (iteration, purpose)
                and (not scorer or is_named(str(life.scorer), scorer))]
        if not any(isinstance(end, Discarded) for end in ends):
            raise Refusal("nothing_there", iteration=iteration)

    def check_end(self, begun: Iterable[int]) -> None:
        """Refusal if one of these lives has ended already, or if a remaining one uses its rows or policy."""
        given = list(begun)
        for each in given:
            if (ended := self.lives[each].ended) is not None:
                raise self._ended("ended", self.lives[each].title, ended)
        doomed = made_from(self.lives, given)
        for life in (self.lives[each] for each in doomed):
            for reader in self.readers(life.begun):
                if reader.begun in doomed:
                    continue
                trained = life if life.stage == "train" else reader
                if trained.stage == "train":
                    raise Refusal("trained", run=self.run, iteration=trained.iteration,
                                  policy=trained.iteration + 1)
                keys = {"run": self.run, "iteration": life.iteration, "number": reader.iteration}
                if turn_of(str(reader.purpose)) > 1:
                    raise Refusal("answered", **keys, wave=reader.purpose)
                raise Refusal("gone_on_with", **keys)
            if life.stage == "train" and life.is_complete and not self.can_train_again(life):
                raise Refusal("trained", run=self.run, iteration=life.iteration, policy=life.iteration + 1)

    def can_train_again(self, training: Life) -> bool:
        """Whether a complete training may end: its policy is the newest, nothing was made from it, and the
        policy that it started from is complete.
        """
        written = [version for version, each in self.policies.items() if each.trained == training.begun]
        return (written == [training.iteration + 1] == [self.newest] and not self.is_sampled(self.newest)
                and not self.policies[training.iteration].dropped)

    def has_weights(self, rollout: Life) -> bool:
        """Whether the policy of a rollout still has weights to sample with."""
        policy = self.policies.get(rollout.settings.get("policy_version") or 0)
        return policy is None or not policy.dropped

    def why_not_again(self, life: Life) -> str:
        """Why no command could restore rows of a rollout or a score; '' if one could."""
        if life.stage in DERIVED:
            rollout = self.life("rollout", life.iteration, life.purpose)
            if rollout and rollout.pruned:
                return "its completions were pruned, so it cannot be scored again"
            same = life.stage != "score" or life.settings.get("replaced", {}) == self.replaced_payloads
            return "" if same else "tasks were replaced since, so it cannot be scored again"
        if life.stage == "rollout" and ((life.pruned and not life.settings.get("model"))    # behind an API
                                        or not self.has_weights(life)):
            return "its tokens or its policy were pruned, so it cannot be sampled again"
        return ""

    def check_rollback(self, to: int) -> None:
        """Refusal if the run cannot go back to a policy."""
        if to not in self.policies:
            raise Refusal("no_policy", to=to, first=min(self.policies), newest=self.newest, option="--to")
        if to == self.newest:
            raise Refusal("is_newest", to=to)
        training = self.life("train", self.newest)
        if training and not training.is_complete:
            raise Refusal("training_begun", title=training.title, iteration=self.newest, run=self.run)
        if self.policies[to].dropped:
            raise Refusal("weights_gone", to=to, kept=self.kept)
        if self.is_sampled(self.newest):
            self.check_end(life.begun for life in self.sampled_ahead())

    def is_rolled_back(self, to: int) -> bool:
        """Whether the newest policy is already that one, with nothing sampled from it."""
        return (to != self.newest and self.policies[self.newest].rolled_back_to == to
                and not self.is_sampled(self.newest))

    def sampled_ahead(self) -> list[Life]:
        """Training rollouts, of any turn, of iterations after the newest policy's."""
        return [life for life in self.of_stage("rollout")
                if life.iteration > self.newest and is_training(str(life.purpose))]

    def check_branch(self, policy: int, rows: bool) -> None:
        """Refusal if no branch can begin at a policy."""
        if policy not in self.policies:
            raise Refusal("no_policy", to=policy, first=min(self.policies), newest=self.newest, option="--at")
        if self.policies[policy].dropped:
            raise Refusal("weights_gone", to=policy, kept=self.kept)
        if rows and self.is_pruned(policy):
            raise Refusal("pruned_rows", iteration=policy)
        left = beyond_branch(self.lives, policy, rows)
        for training in self.of_stage("train"):
            if training.iteration < policy and training.begun in left:
                life = next(self.lives[each] for each in sorted(left) if not self.lives[each].is_complete)
                raise Refusal("to_finish", title=life.title, policy=policy)

    def check_prune(self, before: int) -> None:
        """Refusal if tokens of an iteration before this one are still needed."""
        needed: list[tuple[str, int]] = []
        needed += [("untrained", life.iteration) for life in self.of_stage("rollout")
                   if life.iteration < before and not self.is_trained(life.iteration)]
        needed += [("unscored", life.iteration) for life in self.of_stage("rollout")
                   if life.iteration < before and life.is_complete and not life.pruned
                   and str(life.purpose).startswith("eval")
                   and not self.scorers(life.iteration, str(life.purpose))]
        needed += [("carried_needed", number) for number in self.waiting_groups(before, complete=True)]
        needed += [("waiting_needed", number) for number in self.waiting_iterations(self.newest)
                   if number < before]
        for code, number in needed[:1]:
            earlier = f", or prune with --before {number}" if number else ""
            raise Refusal(code, iteration=number, before=earlier)

    def check_drop(self, versions: Collection[int]) -> None:
        """Refusal if one of these policies is gone or the newest, or shares its folder with another one."""
        kept = {policy.folder for version, policy in self.policies.items() if version not in versions}
        if self.newest in versions or not self.policies.keys() >= {*versions} or (
                kept & {self.policies[version].folder for version in versions}):
            raise Refusal("overtaken", what="the policies", run=self.run)

    def check_live(self, begun: int) -> None:
        """Refusal if a life was ended, or one that it reads."""
        life = self.lives[begun]
        if life.ended is not None:
            raise self._ended("ended", life.title, life.ended)
        self.check_reads(life.reads, life.title)

    def check_begin(self, what: Begun) -> None:
        """Refusal if a stage cannot begin, given what it has read."""
        title = Life(what.stage, what.iteration, what.purpose, what.scorer).title
        if self.life(what.stage, what.iteration, what.purpose, what.scorer):
            raise Refusal("overtaken", what=title, run=self.run)
        self.check_reads(what.reads, title)
        self.check_rows(what.reads, what.rows)
        rollout = self.life("rollout", what.iteration, what.purpose)
        if what.stage in DERIVED and (rollout is None or rollout.begun not in what.reads):
            raise Refusal("no_rollout", title=title)
        if what.stage == "train" and (self.is_trained(what.iteration) or what.iteration + 1 in self.policies):
            raise Refusal("trained_meanwhile", policy=what.iteration + 1, iteration=what.iteration)
        version = what.iteration if what.stage == "train" else what.settings.get("policy_version")
        if what.stage != "score" and version is not None:
            policy = self.policies.get(version)
            read = [begun for begun in what.reads if self.lives[begun].stage == "train"]
            if not policy or read != ([] if policy.trained is None else [policy.trained]):
                raise Refusal("policy_exchanged", policy=version, title=title)
        if what.purpose == TRAIN and {*what.taken}.difference(*self.waiting_groups(what.iteration).values()):
            raise Refusal("groups_taken", iteration=what.iteration)

    def check_complete(self, what: Completed) -> None:
        """Refusal if a stage cannot complete: it already is, or it or what it read has ended."""
        self.check_live(what.generation)
        life = self.lives[what.generation]
        if life.is_complete:
            raise Refusal("complete", title=life.title)

    def check_rewrite(self, what: Rewritten) -> None:
        """Refusal if stages have other rows now than those that their new generations were made from."""
        lives = [self.lives[int(begun)] for begun in what.generations]
        for life, facts in zip(lives, what.generations.values(), strict=True):
            readers = self.derived(life.iteration, str(life.purpose)) if life.stage == "rollout" else []
            others = {reader.begun for reader in readers} - {each.begun for each in lives}
            if life.ended is not None or life.folder != facts["former"] or (
                    others and what.why == "compacted"):        # part i of scores is of part i of completions
                raise Refusal("overtaken", what=life.title, run=self.run)
        if what.why == "pruned":
            self.check_prune(max(life.iteration for life in lives) + 1)

    def check_rows(self, reads: Iterable[int], rows: str | None) -> None:
        """Refusal if the parts that a score processes were merged or repaired since it listed them."""
        for read in reads if rows is not None else ():
            if self.lives[read].stage == "rollout" and self.lives[read].folder != rows:
                raise Refusal("overtaken", what=self.lives[read].title, run=self.run)

    def check_reads(self, reads: Iterable[int], title: str) -> None:
        """Refusal if one of the lives that a stage reads was ended."""
        for read in reads:
            if (ended := self.lives[read].ended) is not None:
                raise self._ended("input_ended", title, ended)

    def _ended(self, code: str, title: str, entry: int) -> Refusal:
        return Refusal(code, title=title, entry=entry, command=self.entries[entry].command)


def made_from(lives: Mapping[int, Life], begun: Iterable[int]) -> set[int]:
    """These lives and those that end with them: scores, logprobs and unfinished trainings."""
    living = [life for life in lives.values() if life.ended is None]
    return _with_readers({*begun}.intersection(life.begun for life in living), [
        life for life in living
        if life.stage in DERIVED or (life.stage == "train" and not life.is_complete)])


def beyond_branch(lives: Mapping[int, Life], policy: int, rows: bool, through: int | None = None) -> set[int]:
    """The lives that a branch at a policy leaves behind: unfinished, of later policies, or made from those.

    Without `rows` also training rows from the policy's iteration on. Training rows up to iteration `through`
    stay, whichever policy sampled them.
    """
    def is_lent(life: Life) -> bool:
        return (life.stage == "rollout" and is_training(str(life.purpose)) and life.is_complete
                and policy <= life.iteration <= (-1 if through is None else through))

    def is_beyond(life: Life) -> bool:
        evaluates = str(life.purpose).startswith("eval")
        return (not life.is_complete or life.sampled_by > policy or (life.iteration >= policy and (
            life.stage == "train" or not (rows or evaluates))))

    living = [life for life in lives.values() if life.ended is None and not is_lent(life)]
    return _with_readers({life.begun for life in living if is_beyond(life)}, living)


def _with_readers(found: set[int], lives: Collection[Life]) -> set[int]:
    """Begun lives, and those of `lives` that read them or what was made from them."""
    while more := {life.begun for life in lives if life.reads & found} - found:
        found |= more
    return found


def is_named(scorer: str, name: str) -> bool:
    """True if `name` is the scorer's identity, or its name without the hash."""
    return scorer == name or scorer.rpartition("-")[0] == name


def _place(purpose: str) -> tuple[bool, str, int]:
    return base_purpose(purpose) != TRAIN, base_purpose(purpose), turn_of(purpose)
