"""Thousands of sequences of transitions, made up: whatever was allowed, the state holds together.

Commands ask the state and append; here so do rules, some with an answer from a state that has moved on since,
as a command has it that another one overtook. What must hold is written down a second time, by brute force.
"""

import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warehouse.ledger import entries
from warehouse.ledger.entries import (
    Begun,
    Branched,
    Completed,
    Discarded,
    Entry,
    Made,
    Rewritten,
    RolledBack,
    TasksChanged,
    Transition,
    WeightsDropped,
)
from warehouse.ledger.fold import Fold, check
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import TRAIN, Life, RunState

NUMBER = st.integers(0, 20)


def trained_by(state: RunState, version: int) -> list[int]:
    trained = state.policies[version].trained
    return [] if trained is None else [trained]


class Machine(RuleBasedStateMachine):
    """A run that commands change, each at once or after others."""

    def __init__(self) -> None:
        super().__init__()
        self.fold, self.stored = Fold("runs/a"), list[str]()
        self.late: list[Transition] = []
        self.append(Made({"tasks_sha256": "0"}))

    @property
    def state(self) -> RunState:
        return self.fold.state()

    def append(self, what: Transition) -> None:
        entry = Entry(self.state.head + 1, what)
        self.stored.append(json.dumps(entry.to_json()))
        self.fold.apply(entry)

    def propose(self, ask: Callable[[RunState], Transition | None], late: bool) -> None:
        """Append what a command asks for, or keep it until others have appended theirs."""
        try:
            what = ask(self.state)
            if what is not None and not late:
                check(self.state, what)
                self.append(what)
            elif what is not None:
                self.late.append(what)
        except Refusal as refusal:
            assert len(str(refusal).splitlines()) == 1

    @rule(steps=st.integers(3, 12), carried=st.integers(0, 2), waiting=st.booleans())
    def loop(self, steps: int, carried: int, waiting: bool) -> None:
        """What a loop does next, several times over."""
        for _ in range(steps):
            under_way = [life for life in self.lives() if not life.is_complete]
            if under_way:
                self.complete(0, carried, waiting, late=False)
            elif self.state.due().stage == "score":
                rollouts = [life for life in self.state.of_stage("rollout")
                            if life.is_complete and not life.pruned]
                unscored = [number for number, life in enumerate(rollouts)
                            if not self.state.scorers(life.iteration, str(life.purpose))]
                self.begin_score(unscored[0], "a-1", late=False)
            elif self.state.due().stage == "train":
                self.begin_training(late=False)
            else:
                self.begin_rollout(ahead=False, size=3, late=False)

    @precondition(lambda self: self.late)
    @rule(number=NUMBER)
    def overtaken(self, number: int) -> None:
        what = self.late.pop(number % len(self.late))
        self.propose(lambda _state: what, late=False)

    @precondition(lambda self: not self.state.life("rollout", self.state.newest + 1, TRAIN))
    @rule(ahead=st.booleans(), size=st.integers(1, 3), late=st.booleans())
    def begin_rollout(self, ahead: bool, size: int, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            iteration = state.newest + 1 if ahead else state.rollout_due()
            version = state.newest if ahead else iteration
            taken = [group for groups in state.waiting_groups(iteration).values() for group in groups][:size]
            lives = [state.life("rollout", number, TRAIN)
                     for number in set(state.gone_on_with(iteration, taken).values())]
            return Begun("rollout", iteration, TRAIN, None, {"policy_version": version},
                         [*trained_by(state, version), *(life.begun for life in lives if life)], taken)
        self.propose(ask, late)

    @precondition(lambda self: self.state.newest)
    @rule(version=NUMBER, late=st.booleans())
    def begin_evaluation(self, version: int, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            chosen = version % (state.newest + 1)
            return Begun("rollout", chosen, "eval", None, {"policy_version": chosen},
                         trained_by(state, chosen))
        self.propose(ask, late)

    @precondition(lambda self: self.state.is_complete("rollout", self.state.newest, TRAIN))
    @rule(turn=st.integers(2, 3), late=st.booleans())
    def begin_turn(self, turn: int, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            iteration = state.turn_due(TRAIN, turn)
            answered = state.life("rollout", iteration, TRAIN if turn == 2 else f"train-turn{turn - 1}")
            assert answered
            version = answered.settings["policy_version"]
            return Begun("rollout", iteration, f"train-turn{turn}", None, {"policy_version": version},
                         [*trained_by(state, version), answered.begun])
        self.propose(ask, late)

    @rule(number=NUMBER, scorer=st.sampled_from(["a-1", "b-1"]), late=st.booleans())
    def begin_score(self, number: int, scorer: str, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            rollouts = [life for life in state.of_stage("rollout") if life.is_complete]
            if not rollouts:
                return None
            of = rollouts[number % len(rollouts)]
            return Begun("score", of.iteration, of.purpose, scorer, {}, [of.begun])
        self.propose(ask, late)

    @rule(late=st.booleans())
    def begin_training(self, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            iteration = state.train_due()
            reads = trained_by(state, iteration) if iteration in state.policies else []
            for number in [*state.waiting_iterations(iteration), iteration]:
                scorer, _ = state.choose_scorer(number, TRAIN, None)
                lives = [state.life("rollout", number, TRAIN), state.life("score", number, TRAIN, scorer)]
                reads += [life.begun for life in lives if life]
            return Begun("train", iteration, None, None, {}, reads)
        self.propose(ask, late)

    @rule(number=NUMBER, carried=st.integers(0, 2), waiting=st.booleans(), late=st.booleans())
    def complete(self, number: int, carried: int, waiting: bool, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            under_way = [life for life in self.lives() if not life.is_complete]
            if not under_way:
                return None
            life = under_way[number % len(under_way)]
            facts: dict[str, Any] = {}
            if life.stage == "train":
                facts = {"policy": f"{life.iteration + 1}/generation={life.begun}", "waiting": waiting,
                         "scorer": "a-1"}
            elif life.purpose == TRAIN and carried:
                groups = [*life.taken, *(f"{life.iteration}/{each}" for each in range(2))]
                facts = {"carried": groups[-carried:]}
            return Completed(life.begun, "", facts)
        self.propose(ask, late)

    @rule(number=NUMBER, kind=st.sampled_from([TRAIN, "eval", "train-turn2", None, "score"]),
          late=st.booleans())
    def discard(self, number: int, kind: str | None, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            iteration = number % (state.newest + 2)
            lives = (state.of_stage("score", iteration, TRAIN) if kind == "score"
                     else state.to_discard(iteration, kind))
            return Discarded([life.begun for life in lives]) if lives else None
        self.propose(ask, late)

    @rule(number=NUMBER, late=st.booleans())
    def train_again(self, number: int, late: bool) -> None:
        """A repair of a training's rows."""
        def ask(state: RunState) -> Transition | None:
            trainings = state.of_stage("train")
            return Discarded([trainings[number % len(trainings)].begun]) if trainings else None
        self.propose(ask, late)

    @precondition(lambda self: self.state.newest)
    @rule(to=NUMBER, late=st.booleans())
    def roll_back(self, to: int, late: bool) -> None:
        self.propose(lambda state: RolledBack(to % state.newest, 7), late)

    @rule(number=NUMBER, why=st.sampled_from(["compacted", "pruned", "repaired"]), late=st.booleans())
    def rewrite(self, number: int, why: str, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            lives = [life for life in self.lives() if life.is_complete]
            if not lives:
                return None
            life = lives[number % len(lives)]
            beside = (state.of_stage("score", life.iteration, str(life.purpose))
                      if life.stage == "rollout" else [])
            changed = [life, *(beside if why == "compacted" else [])]
            facts = {"pruned": True} if why == "pruned" else {}
            if why == "repaired" and life.stage != "train":
                facts = {"open": True}
            return Rewritten(why, {str(each.begun): {"former": each.folder, "folder": f"{why}-{state.head}",
                                                     **facts} for each in changed})
        self.propose(ask, late)

    @rule(keep=st.integers(1, 3), late=st.booleans())
    def drop_weights(self, keep: int, late: bool) -> None:
        def ask(state: RunState) -> Transition | None:
            kept = {policy.folder for version, policy in state.policies.items()
                    if not version or version > state.newest - keep}
            versions = [version for version, policy in state.policies.items() if policy.folder not in kept]
            return WeightsDropped(versions) if versions else None
        self.propose(ask, late)

    @precondition(lambda self: self.state.newest)
    @rule(at=NUMBER, rows=st.booleans(), late=st.booleans())
    def branch(self, at: int, rows: bool, late: bool) -> None:
        """What it leaves is of policies and iterations before, or was sampled by such a policy."""
        def ask(state: RunState) -> Transition:
            return Branched("runs/a", "b", state.head, at % (state.newest + 1), rows)
        head = self.state.head
        self.propose(ask, late)
        if self.state.head > head:
            policy = self.state.newest
            assert self.state.rollout_due() >= policy
            for life in self.lives():
                assert life.is_complete
                if life.stage == "rollout":
                    assert life.settings["policy_version"] <= policy
                    assert life.iteration < policy or rows or life.purpose == "eval"
                elif life.stage == "train":
                    assert life.iteration < policy

    @precondition(lambda self: len(self.state.task_changes) < 2)
    @rule(late=st.booleans())
    def change_tasks(self, late: bool) -> None:
        self.propose(lambda state: TasksChanged(str(state.head), str(state.head), state.tasks_sha256, {}),
                     late)

    def lives(self) -> list[Life]:
        return [self.state.lives[begun] for begun in self.state.current.values()]

    def counting(self, stage: str) -> list[Life]:
        return [life for life in self.state.lives.values() if life.stage == stage and life.ended is None]

    @invariant()
    def what_counts_reads_nothing_that_ended(self) -> None:
        for begun in self.state.current.values():
            life = self.state.lives[begun]
            assert life.ended is None
            assert not [read for read in life.reads if self.state.lives[read].ended is not None], life

    @invariant()
    def one_life_of_a_stage_counts(self) -> None:
        unended = [life.begun for life in self.state.lives.values() if life.ended is None]
        assert sorted(unended) == sorted(self.state.current.values())

    @invariant()
    def policies_have_no_gap_and_each_its_training(self) -> None:
        policies = self.state.policies
        assert sorted(policies) == list(range(len(policies)))
        for version, policy in policies.items():
            if version and policy.rolled_back_to is None:
                assert policy.trained is not None
                trained = self.state.lives[policy.trained]
                assert trained.is_complete and trained.ended is None and trained.iteration == version - 1
        assert not policies[self.state.newest].dropped
        folders = {folder: {each.dropped for each in policies.values() if each.folder == folder}
                   for folder in {policy.folder for policy in policies.values()}}
        assert all(len(dropped) == 1 for dropped in folders.values())

    @invariant()
    def one_training_is_under_way_and_of_the_newest_policy(self) -> None:
        under_way = [life.iteration for life in self.counting("train") if not life.is_complete]
        assert under_way in ([], [self.state.newest])
        assert self.state.train_due() == self.state.newest

    @invariant()
    def a_group_is_finished_once(self) -> None:
        finished = [group for life in self.counting("rollout")
                    if life.purpose == TRAIN and life.is_complete
                    and not self.state.is_left_out(life.iteration)
                    for group in life.taken if group not in life.carried]
        assert len(finished) == len({*finished})

    @invariant()
    def a_waiting_group_is_in_no_plan(self) -> None:
        waiting = [group for groups in self.state.waiting_groups(99).values() for group in groups]
        assert len(waiting) == len({*waiting})
        for group in waiting:
            carried = [life.iteration for life in self.counting("rollout") if group in life.carried]
            assert not [life for life in self.counting("rollout") if group in life.taken
                        and life.iteration > max(carried) and not self.state.is_left_out(life.iteration)]

    def teardown(self) -> None:
        """Entries as they are stored fold to the same state."""
        again = Fold("runs/a")
        for text in self.stored:
            again.apply(Entry.from_json(json.loads(text)))
        assert again.state() == self.state
        super().teardown()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


def test_the_seconds_of_what_a_repair_opens_again_still_count() -> None:
    fold = Fold("runs/a")
    for number, what in enumerate((
            entries.Begun("rollout", 0, "train", None, {}), entries.Worked(0, 4.0, "share 0/2 is done"),
            entries.Completed(0, facts={"seconds": 53.0}),
            entries.Rewritten("repaired", {"0": {"former": "0", "folder": "3", "open": True}}))):
        fold.apply(entries.Entry(number, what))
    life = fold.state().lives[0]
    assert not life.is_complete and life.worked == 57.0
