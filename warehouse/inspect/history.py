"""The history of a run, entry by entry of its log: when, where, by which command, what changed."""

import datetime
from typing import Any

from warehouse.ledger import entries
from warehouse.ledger.fold import Fold
from warehouse.ledger.state import Life, RunState
from warehouse.store.errors import counted, option_name, shorten


def history(state: RunState) -> list[dict[str, Any]]:
    """Every entry, newest first: number, at (UTC, None if unknown), host, command, kind, what, changes.

    Stage, iteration and purpose are those it is about, None if it is not about one stage. `policy` is the
    newest then, `seconds` those of a process that left or completed a stage, `what` a sentence; `changes` are
    settings that differ from the stage's previous life, as name, before, now. Entries with negative numbers
    stand for what a version without a log wrote.
    """
    before: dict[tuple[str | None, ...], Life] = {}
    rows, then = [], Fold(state.run)
    for number, entry in sorted(state.entries.items()):
        then.apply(entry)
        changes: list[dict[str, Any]] = []
        if isinstance(entry.what, entries.Begun):
            life = state.lives[number]
            changes = _differences(before.get(_kind(life)), life)
            before[_kind(life)] = life
        if isinstance(entry.what, entries.Branched):        # what is compared with now belongs to this run
            before = {_kind(life): life for begun, life in sorted(state.lives.items())
                      if begun < number and life.ended != number}
        about = state.lives.get(getattr(entry.what, "generation", number))
        at = datetime.datetime.fromtimestamp(entry.at, datetime.UTC).isoformat(timespec="seconds")
        rows.append({"number": number, "at": at if entry.at else None, "host": entry.host,
                     "command": entry.command, "kind": entries.NAMES[type(entry.what)],
                     "stage": about and about.stage, "iteration": about and about.iteration,
                     "purpose": about and about.purpose, "policy": then.newest, "seconds": _seconds(entry),
                     "what": sentence(state, entry), "changes": changes})
    return rows[::-1]


def history_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        name = f"entry {row['number']}" if row["number"] >= 0 else "before the log"
        lines += ["  ".join(filter(None, (name, row["at"], row["host"]))), f"    $ {row['command']}",
                  f"    {row['what']}"]
        lines += [f"      {each['name']} {shorten(each['before'], 60)} -> {shorten(each['now'], 60)}"
                  for each in row["changes"]]
        lines.append("")
    return lines[:-1]


def sentence(state: RunState, entry: entries.Entry) -> str:
    def titles(numbers: list[int]) -> str:
        return ", ".join(state.lives[number].title for number in numbers)

    match entry.what:
        case entries.Made(facts=facts):
            return f"the run is made: base model {facts.get('model')}"
        case entries.Begun():
            return f"{state.lives[entry.number].title} begins"
        case entries.Changed() as what:
            return (f"{titles([what.generation])} continues with {what.setting} = {shorten(what.now, 60)}, "
                    f"before {shorten(what.before, 60)}")
        case entries.Worked(generation=generation, seconds=seconds, why=why):
            return f"{titles([generation])} was worked on for {seconds:.0f} s: {why}"
        case entries.Completed(generation=generation, facts=facts):
            policy = f"; policy {state.lives[generation].iteration + 1}" if "policy" in facts else ""
            after = f" after {facts['seconds']:.0f} s" if "seconds" in facts else ""
            return f"{titles([generation])} is complete{after}{policy}"
        case entries.Discarded(generations=generations):
            return f"discarded: {titles(generations)}"
        case entries.RolledBack(to=to, why=why):
            return f"went back to policy {to}" + (f": {why}" if why else "")
        case entries.Alarmed(generation=generation, signals=signals):
            return f"the loop ended at {titles([generation])}: {', '.join(signals)}"
        case entries.Rewritten(why=why, generations=generations):
            return f"{why}: {titles([int(number) for number in generations])}"
        case entries.TasksChanged(change=change):
            return "; ".join(_tasks(done, [*change[done]]) for done in ("added", "replaced")
                             if done in change)
        case entries.WeightsDropped(versions=versions):
            return f"weights of policies {', '.join(map(str, versions))} are dropped"
        case entries.Branched() as what:
            rows = " with rows sampled from there on" if what.rows else ""
            return (f"branched off {what.run} after its entry {what.entry}, at policy {what.policy}{rows}: "
                    "what is listed below happened there")
        case entries.OldPolicy(version=version):
            return f"policy {version}"


def _seconds(entry: entries.Entry) -> float | None:
    match entry.what:
        case entries.Worked(seconds=seconds):
            return seconds
        case entries.Completed(facts=facts):
            return facts.get("seconds")
    return None


def _tasks(done: str, names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{counted(len(names), 'task')} {done}: {', '.join(names[:3])}{rest}"


def _kind(life: Life) -> tuple[str | None, ...]:
    return life.stage, life.purpose, (life.scorer or "").rpartition("-")[0]


def _differences(before: Life | None, now: Life) -> list[dict[str, Any]]:
    """Settings in which a life of a stage differs from the previous one."""
    if before is None:
        return []
    names = sorted(before.settings.keys() | now.settings.keys())
    return [{"name": option_name(name), "before": before.settings.get(name),
             "now": now.settings.get(name)} for name in names
            if not name.endswith(("_sha256", "policy_version", "replaced"))
            and before.settings.get(name) != now.settings.get(name)
            and (name != "serve" or (before.settings.get(name) and now.settings.get(name)))]   # else policy 0
