"""Entries of a log, applied one after the other, give the state of a run."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from warehouse.ledger import entries
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Life, Policy, RunState, beyond_branch, made_from


class Fold:
    """The state as it grows, entry by entry; `state` is a copy that later entries do not change."""

    def __init__(self, run: str) -> None:
        self._now = RunState(run, {}, {}, {}, {0: Policy(0, "0")}, {}, {})
        self._copy: RunState | None = None

    def state(self) -> RunState:
        """The state after the entries so far."""
        now = self._now
        if self._copy is None:
            self._copy = replace(now, lives={**now.lives}, current={**now.current}, entries={**now.entries},
                                 policies={**now.policies}, left_out={**now.left_out})
        return self._copy

    @property
    def newest(self) -> int:
        """The newest policy after the entries so far."""
        return self._now.newest

    def _set(self, **values: Any) -> None:
        self._now = replace(self._now, **values)

    def apply(self, entry: entries.Entry) -> None:
        """Apply the next entry; it was checked when it was appended."""
        self._copy, now, what = None, self._now, entry.what
        now.entries[entry.number] = entry
        self._set(head=max(now.head, entry.number))
        match what:
            case entries.Made():
                self._made(what)
            case entries.Begun():
                key = what.stage, what.iteration, what.purpose, what.scorer
                folder = str(entry.number) if what.folder is None else what.folder
                now.lives[entry.number] = Life(*key, entry.number, folder, what.settings,
                                               frozenset(what.reads), tuple(what.taken))
                now.current[key] = entry.number
            case entries.Changed():
                change = {"setting": what.setting, "before": what.before, "now": what.now}
                self._change(what.generation, changes=(*now.lives[what.generation].changes, change))
            case entries.Worked():
                worked = now.lives[what.generation].worked + what.seconds
                self._change(what.generation, worked=round(worked, 1))
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
                self._set(tasks_folder=what.folder, tasks_sha256=what.sha256,
                          task_changes=(*now.task_changes, what.change))
            case entries.WeightsDropped():
                for version in what.versions:
                    now.policies[version] = replace(now.policies[version], dropped=True)
            case entries.Branched():
                self._branch(what, entry.number)
            case entries.OldPolicy():
                now.policies[what.version] = Policy(what.version, str(what.version), **what.facts)

    def _made(self, what: entries.Made) -> None:
        for stored in what.old:
            self.apply(entries.Entry.from_json(stored))
        self._set(facts=what.facts, tasks_sha256=self._now.tasks_sha256 or what.facts.get("tasks_sha256"))

    def _change(self, begun: int, **changes: Any) -> None:
        self._now.lives[begun] = replace(self._now.lives[begun], **changes)

    def _completed(self, number: int, what: entries.Completed) -> None:
        life = self._now.lives[what.generation]
        self._change(what.generation, completed=number, version=number, facts=what.facts,
                     lost=tuple(what.facts.get("lost", ())),
                     pruned=bool(what.facts.get("pruned")), compacted=bool(what.facts.get("compacted")))
        if life.stage == "train" and "policy" in what.facts:
            version = life.iteration + 1
            self._now.policies[version] = Policy(version, what.facts["policy"], life.begun,
                                                 waiting=bool(what.facts.get("waiting")))
        if "rolled_back_to" in what.facts:
            self._now.left_out[life.iteration] = what.facts["rolled_back_to"]

    def _branch(self, what: entries.Branched, number: int) -> None:
        now, facts = self._now, self._now.facts
        self._end(beyond_branch(now.lives, what.policy, what.rows, what.through), number)
        for begun in now.current.values():
            if now.lives[begun].sampled_by > what.policy:
                self._change(begun, shared=what.policy)
        parents = [facts["run_id"], *facts.get("parents", [])] if "run_id" in facts else []
        policies = {version: each for version, each in now.policies.items() if version <= what.policy}
        left_out = {each: to for each, to in now.left_out.items() if each < what.policy}
        self._set(policies=policies, left_out=left_out,
                  facts={**facts, "run_id": what.run_id, "parents": parents})

    def _end(self, begun: Iterable[int], number: int) -> None:
        """End lives and everything made from them."""
        now = self._now
        for each in made_from(now.lives, begun):
            life = now.lives[each]
            self._change(each, ended=number)
            written = now.policies.get(life.iteration + 1)
            if life.stage == "train" and written and written.trained == each:
                del now.policies[life.iteration + 1]
            if now.current.get(life.key) == each:
                del now.current[life.key]

    def _roll_back(self, what: entries.RolledBack, number: int) -> None:
        """The newest version becomes an earlier policy; if it was sampled, the next version does."""
        now, to, newest, chosen = self._now, what.to, self._now.newest, self._now.policies[what.to]
        version, rate = newest, now.policies[newest].rate * what.rate
        if now.is_sampled(newest):
            rate = what.rate
            version = newest + 1
            if not now.is_trained(newest):
                now.left_out[newest] = to
            self._end([life.begun for life in now.sampled_ahead()], number)
        self._end([life.begun for life in now.of_stage("logprobs")
                   if life.settings.get("policy_version") == version], number)
        now.policies[version] = replace(chosen, version=version, rolled_back_to=to,
                                        global_step=what.global_step, rate=rate)

    def _rewrite(self, begun: int, facts: dict[str, Any], number: int, compacted: bool) -> None:
        life = self._now.lives[begun]
        compacted = (compacted or life.compacted) and not facts.get("open")
        lost = tuple(facts.get("lost", life.lost))
        self._change(begun, folder=facts["folder"], pruned=facts.get("pruned", life.pruned), lost=lost,
                     compacted=compacted)
        if facts.get("open"):
            worked = round(life.worked + life.facts.get("seconds", 0), 1)
            self._change(begun, completed=None, worked=worked)
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
                raise Refusal("overtaken", what="the tasks", run=state.run)
        case entries.WeightsDropped():
            state.check_drop(what.versions)
        case entries.Branched():
            state.check_branch(what.policy, what.rows)
