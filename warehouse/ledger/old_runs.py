"""Runs of schema 2 and 3, which have no log: their files are converted into entries."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warehouse.ledger.entries import Begun, Changed, Completed, Entry, OldPolicy, TasksChanged, Transition
from warehouse.ledger.state import Key
from warehouse.store.commit import ensure_local, file_names, replace_bytes, twin_of
from warehouse.store.errors import StageError
from warehouse.store.json_files import damaged, json_bytes, read_json
from warehouse.store.names import base_purpose, turn_of, turn_purpose

WITH_LOG = 4            # the schema version that brought the log
FIRST = -10**9          # number of the first of these entries; those of a log begin at 0
STAGE_FOLDER = re.compile(r"(?P<table>completions|samples|train)/iteration=(?P<iteration>\d+)"
                          r"(?:/purpose=(?P<purpose>[^/]+))?(?:/scorer=(?P<scorer>[^/]+))?")
STAGES = {"completions": "rollout", "samples": "score", "train": "train"}


def old_entries(root: Path) -> list[Entry]:
    """The history of a run without a log, as far as its files record it; Damaged if it had a log."""
    facts = read_json(root / "warehouse.json") or {}
    if facts.get("schema_version", 0) >= WITH_LOG and (
            "oldest_part" not in facts or any(root.glob("*/iteration=*/**/generation=*"))):
        raise damaged(root / "_log", "it is gone, or may not be read")
    found = _Found(root)
    for table, depth in (("completions", 2), ("samples", 3), ("train", 1)):
        for folder in sorted(root.glob("/".join([table, *["*=*"] * depth]))):
            if match := STAGE_FOLDER.fullmatch(folder.relative_to(root).as_posix()):
                found.add(folder, **match.groupdict())
    return found.entries()


class _Found:
    """Stages by (stage, iteration, purpose, scorer), with their documents."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stages: dict[Key, tuple[Path, Any, Any]] = {}

    def add(self, folder: Path, table: str, iteration: str, purpose: str | None, scorer: str | None) -> None:
        settings, manifest = (_readable(folder / name) for name in ("settings.json", "manifest.json"))
        if settings is not None or manifest is not None or any(folder.glob("*.parquet")):
            self._stages[STAGES[table], int(iteration), purpose, scorer] = folder, settings, manifest

    def entries(self) -> list[Entry]:
        self._begun = {key: FIRST + number for number, key in enumerate(self._stages)}
        carries = any(part["name"].startswith("carried-") for _, _, manifest in self._stages.values()
                      for part in (manifest or {}).get("parts", []))
        events: list[tuple[float, Transition]] = []
        for key, (folder, settings, manifest) in self._stages.items():
            known = settings if settings is not None else (manifest or {}).get("settings") or {}
            taken = self._groups("prompts", key) if carries and key[::2] == ("rollout", "train") else []
            taken = [group for group in taken if not group.startswith(f"{key[1]}/")]
            events.append((_time(folder), Begun(*key, known, self._reads(key, known, taken), taken, "")))
        for key, (folder, _settings, _manifest) in self._stages.items():
            for path in sorted([*folder.glob("drift-*.json"), *folder.glob("change-*.json")]):
                if change := _readable(path):
                    events.append((_time(path), Changed(self._begun[key], change["setting"], change["before"],
                                                        change["now"])))
        complete = [(manifest.get("finished_at", 0.0), key, manifest)
                    for key, (_, _, manifest) in self._stages.items() if manifest]
        events += [(at, Completed(self._begun[key], "", self._facts(key, manifest)))
                   for at, key, manifest in sorted(complete, key=lambda each: each[0])]
        events += list(self._policies())
        for path in sorted((self._root / "tasks").glob("change-*.json")):
            if change := read_json(path, at=str):
                events.append((0.0, TasksChanged("", change["tasks_sha256"],
                                                 change.get("tasks_sha256_before"), change)))
        return [Entry(FIRST + number, what, at, "", "an earlier version")
                for number, (at, what) in enumerate(events)]

    def _reads(self, key: Key, settings: dict[str, Any], taken: Iterable[str]) -> list[int]:
        """The stages from which a stage took rows or the policy."""
        stage, iteration, purpose, _scorer = key
        wanted: list[Key] = []
        if stage == "score":
            wanted = [("rollout", iteration, purpose, None)]
        elif stage == "train":
            rows = settings.get("purpose", "train")
            wanted = [other for other in self._stages if other[1] == iteration and other[0] != "train"
                      and base_purpose(str(other[2])) == rows and other[3] in (None, settings.get("scorer"))]
            wanted += [("train", iteration - 1, None, None)]
        else:
            wanted = [("train", (settings.get("policy_version") or 0) - 1, None, None)]
            wanted += [("rollout", iteration, turn_purpose(base_purpose(str(purpose)),
                                                           turn_of(str(purpose)) - 1), None)
                       ] if turn_of(str(purpose)) > 1 else []
            origins = {int(group.partition("/")[0]) for group in taken}
            wanted += [("rollout", origin, "train", None) for origin in sorted(origins)]
        return [self._begun[other] for other in wanted if other in self._begun]

    def _facts(self, key: Key, manifest: dict[str, Any]) -> dict[str, Any]:
        facts = manifest.get("facts") or {}
        kept = {name: facts[name] for name in ("scorer", "waiting", "rolled_back_to") if name in facts}
        if key[0] == "train" and "scorer" in (manifest.get("settings") or {}):
            kept.setdefault("scorer", manifest["settings"]["scorer"])
        kept |= {name: manifest[name] for name in ("pruned", "lost") if manifest.get(name)}
        kept |= {"compacted": True} if "compacted_at" in manifest else {}
        if any(part["name"].startswith("carried-") for part in manifest.get("parts", [])):
            kept["carried"] = self._groups("carried", key)
        return kept

    def _groups(self, table: str, key: Key) -> list[str]:
        """Groups in the parts of a rollout, each once."""
        from warehouse.store.parts import read_parts
        top, stem = ("prompts", "part") if table == "prompts" else ("completions", "carried")
        folder = self._root / top / f"iteration={key[1]}" / f"purpose={key[2]}"
        parts = [folder / name for name in file_names(folder, f"{stem}-*.parquet")]
        ensure_local(parts)
        return list(dict.fromkeys(read_parts(parts, table, ["group_id"])["group_id"].to_pylist()))

    def _policies(self) -> Iterable[tuple[float, OldPolicy]]:
        for path in sorted(self._root.glob("policies/*/policy.json")):
            if path.parent.name.isdigit() and (policy := _readable(path)):
                version = int(path.parent.name)
                dropped = policy.get("kind", "base") != "base" and not any(
                    name != path.name for name in file_names(path.parent, "*"))
                yield _time(path), OldPolicy(version, {
                    "trained": self._begun.get(("train", version - 1, None, None)), "dropped": dropped,
                    "rolled_back_to": policy.get("rolled_back_to"),
                    "waiting": bool((policy.get("facts") or {}).get("waiting"))})


def upgrade(root: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Give warehouse.json a schema version that software without a log refuses; return the new facts.

    If this is killed in between, either software can open the run. StageError if a command of an old version
    was stopped during its changes: that version has to finish them.
    """
    if intent := read_json(root / "intent.json", command=str):
        raise StageError(f"`{intent['command']}` of an earlier version was stopped during its changes. "
                         "Open the run once with that version (`warehouse summary` finishes them).")
    facts = read_json(root / "warehouse.json", run_id=str) or facts
    if facts["schema_version"] < WITH_LOG:
        facts = upgraded(facts)
        if twin := twin_of(root):
            twin.bucket.put("warehouse.json", json_bytes(facts))
        replace_bytes(root / "warehouse.json", json_bytes(facts))
    return facts


def upgraded(facts: dict[str, Any]) -> dict[str, Any]:
    """warehouse.json with the schema version of a run that has a log."""
    if facts["schema_version"] >= WITH_LOG:
        return facts
    return {"oldest_part": facts["schema_version"], **facts, "schema_version": WITH_LOG}


def _readable(path: Path) -> dict[str, Any] | None:
    """A document; None if it is missing or damaged: `warehouse check` reports it."""
    try:
        return read_json(path)
    except StageError:
        return None


def _time(path: Path) -> float:
    return path.stat().st_mtime
