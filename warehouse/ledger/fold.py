"""Entries of a log, applied one after the other, give the state of a run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from warehouse.ledger import entries
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Key, Life, Policy, RunState, beyond_branch, made_from


class Fold:
    """The state as it grows, entry by entry; `state` is an immutable copy of it."""

    def __init__(self, run: str) -> None:
        self._run, self._head = run, -1
        self._facts: dict[str, Any] = {}
        self._lives: dict[int, Life] = {}
        self._current: dict[Key, int] = {}
        self._policies = {0: Policy(0, "0")}
        self._left_out: dict[int, int] = {}
        self._entries: dict[int, entries.Entry] = {}
        self._tasks: tuple[str, str | None] = "", None
        self._task_changes: tuple[dict[str, Any], ...] = ()
        self._state: RunState | None = None

    def state(self) -> RunState:
        """The state after the entries so far."""
        if self._state is None:
            self._state = self._as_state(dict)
        return self._state

    def _as_state(self, copy: Callable[[dict], dict]) -> RunState:
        return RunState(self._run, self._facts, copy(self._lives), copy(self._current), copy(self._policies),
                        copy(self._left_out), copy(self._entries), *self._tasks, self._task_changes,
                        self._head)

    def apply(self, entry: entries.Entry) -> None:
        """Apply the next entry; it was checked when it was appended."""
        self._state, what = None, entry.what
        self._entries[entry.number] = entry
        self._head = max(self._head, entry.number)
        match what:
            case entries.Made():
                self._made(what)
            case entries.Begun():
                key = what.stage, what.iteration, what.purpose, what.scorer
                folder = str(entry.number) if what.folder is None else what.folder
                self._lives[entry.number] = Life(*key, entry.number, folder, what.settings,
                                                 frozenset(what.reads), tuple(what.taken))
                self._current[key] = entry.number
            case entries.Changed():
                change = {"setting": what.setting, "before": what.before, "now": what.now}
                self._change(what.generation, changes=(*self._lives[what.generation].changes, change))
            case entries.Completed():
                self._completed(entry.number, what)
            case entries.Discarded():
                self._end(what.generations, entry.number)
            case entries.RolledBack():
                self._roll_back(what, entry.number)
            case entries.Rewritten():
                for begun, facts in what.generations.items():
                    self._rewrite(int(begun), facts, entry.number, what.why == "compacted")
            case entries.TasksChanged():
                self._tasks = what.folder, what.sha256
                self._task_changes += (what.change,)
            case entries.WeightsDropped():
                for version in what.versions:
                    self._policies[version] = replace(self._policies[version], dropped=True)
            case entries.Branched():
                self._branch(what, entry.number)
            case entries.OldPolicy():
                self._policies[what.version] = Policy(what.version, str(what.version), **what.facts)

    def _made(self, what: entries.Made) -> None:
        for stored in what.old:
            self.apply(entries.Entry.from_json(stored))
        self._state, self._facts = None, what.facts
        self._tasks = self._tasks[0], self._tasks[1] or what.facts.get("tasks_sha256")

    def _change(self, begun: int, **changes: Any) -> None:
        self._lives[begun] = replace(self._lives[begun], **changes)

    def _completed(self, number: int, what: entries.Completed) -> None:
        life = self._lives[what.generation]
        self._change(what.generation, completed=number, version=number, facts=what.facts,
                     lost=tuple(what.facts.get("lost", ())),
                     pruned=bool(what.facts.get("pruned")), compacted=bool(what.facts.get("compacted")))
        if life.stage == "train" and "policy" in what.facts:
            version = life.iteration + 1
            self._policies[version] = Policy(version, what.facts["policy"], life.begun,
                                             waiting=bool(what.facts.get("waiting")))
        if "rolled_back_to" in what.facts:
            self._left_out[life.iteration] = what.facts["rolled_back_to"]

    def _branch(self, what: entries.Branched, number: int) -> None:
        self._end(beyond_branch(self._lives, what.policy, what.rows, what.through), number)
        for begun in self._current.values():
            life = self._lives[begun]
            if life.sampled_by > what.policy:
                self._change(begun, shared=what.policy)
        self._policies = {version: each for version, each in self._policies.items() if version <= what.policy}
        self._left_out = {each: to for each, to in self._left_out.items() if each < what.policy}
        parents = [self._facts["run_id"], *self._facts.get("parents", [])] if "run_id" in self._facts else []
        self._facts = {**self._facts, "run_id": what.run_id, "parents": parents}

    def _end(self, begun: Iterable[int], number: int) -> None:
        """End lives and everything made from them."""
        for each in made_from(self._lives, begun):
            life = self._lives[each]
            self._change(each, ended=number)
            written = self._policies.get(life.iteration + 1)
            if life.stage == "train" and written and written.trained == each:
                del self._policies[life.iteration + 1]
            if self._current.get(life.key) == each:
                del self._current[life.key]

    def _roll_back(self, what: entries.RolledBack, number: int) -> None:
        """The newest version becomes an earlier policy; if it was sampled, the next version does."""
        before = self._as_state(lambda mapping: mapping)
        to, newest, chosen = what.to, before.newest, self._policies[what.to]
        version = newest
        if before.is_sampled(newest):
            version = newest + 1
            if not before.is_trained(newest):
                self._left_out[newest] = to
            self._end([life.begun for life in before.sampled_ahead()], number)
        self._end([life.begun for life in before.of_stage("logprobs")
                   if life.settings.get("policy_version") == version], number)
        self._policies[version] = replace(chosen, version=version, rolled_back_to=to,
                                          global_step=what.global_step)

    def _rewrite(self, begun: int, facts: dict[str, Any], number: int, compacted: bool) -> None:
        life = self._lives[begun]
        compacted = (compacted or life.compacted) and not facts.get("open")
        lost = tuple(facts.get("lost", life.lost))
        self._change(begun, folder=facts["folder"], pruned=facts.get("pruned", life.pruned), lost=lost,
                     compacted=compacted)
        if facts.get("open"):
            self._change(begun, completed=None)
        if facts.get("open") or lost != life.lost:
            self._change(begun, version=number)


def check(state: RunState, what: entries.Transition) -> None:
    """Refusal if the state does not allow a transition; checked before an entry is appended."""
    match what:
        case entries.Begun():
            state.check_begin(what)
        case entries.Changed():
            state.check_live(what.generation)
        case entries.Completed():
            state.check_complete(what)
        case entries.Discarded():
            state.check_end(what.generations)
        case entries.RolledBack():
            state.check_rollback(what.to)
        case entries.Rewritten():
            state.check_rewrite(what)
        case entries.TasksChanged():
            if state.tasks_sha256 != what.former:
                raise Refusal("overtaken", what="tasks", run=state.run)
        case entries.WeightsDropped():
            state.check_drop(what.versions)
        case entries.Branched():
            state.check_branch(what.policy, what.rows)
