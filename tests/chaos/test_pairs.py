"""Every pair of commands that change a run: the second runs before each entry that the first commits.

What comes out is what one of the two orders gives, or the first ends with one sentence; run again it gives
what one of the orders gives.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.building.plain import SCORER, sample, score, train
from tests.building.runs import TURN, arc_file, new_run, without_waiting
from tests.building.sound import check_run
from warehouse.ledger.log import Log
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.fix import fix
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back
from warehouse.maintain.tasks import add_tasks, replace_tasks
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

COMMIT = Log._commit
LEAVES_OPEN = {"compact", "score"}    # what is under way is left open, and done when it is run again
PASSING = {"finished_at", "started_at", "host", "seconds", "wall_seconds", "policy_sha256"}
Command = Callable[[Warehouse], object]
# How far the run is that the first command finds: what it changes is there, and nothing of it is done.
READY = {"rollout": "trained", "score": "sampled", "train": "scored", "evaluation": "scored",
         "rollback": "scored", "discard": "scored", "fix": "damaged", "compact": "scored",
         "prune": "scored", "tasks add": "scored", "tasks replace": "scored"}


def fix_all(warehouse: Warehouse) -> None:
    fix(warehouse, check_run(warehouse).changes)


COMMANDS: dict[str, Command] = {
    "rollout": sample, "score": score, "train": train,
    "evaluation": lambda warehouse: sample(warehouse, evaluate=True),
    "rollback": lambda warehouse: roll_back(warehouse, 0),
    "discard": lambda warehouse: discard(warehouse, 1, "train"),
    "fix": fix_all, "compact": compact_run,
    "prune": lambda warehouse: prune_run(warehouse, 1, dry_run=False),
    "tasks add": lambda warehouse: add_tasks(warehouse, (f"more={_source('more.json')}",), ()),
    "tasks replace": lambda warehouse: replace_tasks(warehouse, (_source("other.json"),)),
}
PAIRS = [(first, second) for first in COMMANDS for second in COMMANDS]
SAMPLE = [*PAIRS[3::16], ("compact", "prune")]


@cache
def _made() -> Path:
    """A folder with runs at their several stages and files of tasks, made once per process."""
    import atexit
    import tempfile
    folder = Path(tempfile.mkdtemp(prefix="pairs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    arc_file(folder, ["more"])
    swapped = {"train": TURN["test"], "test": TURN["train"]}
    (folder / "other.json").write_text(json.dumps({"t0": swapped}))
    warehouse = new_run(folder / "trained", {"t0": TURN, "t1": TURN}, {"h0": TURN})
    for work in (sample, score, train):
        work(warehouse)
    for name, work in (("sampled", sample), ("scored", score), ("damaged", _damage)):
        shutil.copytree(warehouse.root, folder / name)
        warehouse = open_warehouse(folder / name)
        work(warehouse)
    return folder


def _source(name: str) -> str:
    return str(_made() / name)


def _damage(warehouse: Warehouse) -> None:
    """A bit of a scored part, and a file that is nobody's."""
    part = warehouse.part_path("samples", 1, iteration=1, purpose="train", scorer=SCORER)
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 4
    part.chmod(0o644)
    part.write_bytes(content)
    (part.parent / "notes.txt").write_text("mine")


def run(command: str, root: Path) -> str | None:
    """The command with a run that it opens; its sentence if it refused."""
    try:
        COMMANDS[command](open_warehouse(root))
    except StageError as error:
        return str(error)
    return None


def summary(root: Path) -> dict[str, Any]:
    """What the run holds: complete stages with their rows, open ones, policies, tasks."""
    warehouse = open_warehouse(root)
    found: dict[str, Any] = {"tasks": _lasting(warehouse, "tasks")}
    for stage in warehouse.stages():
        assert stage.life is not None
        name = f"{stage.title}: "
        if not stage.is_complete():
            found[name] = "open"
            continue
        found[name] = sorted(stage.life.lost), stage.life.pruned
        tables = {"rollout": ("prompts", "completions"), "score": ("samples",), "train": ("train_samples",)}
        for each in tables[stage.name]:
            found[name + each] = (len(warehouse.parts(each, **stage.identity)),
                                  _lasting(warehouse, each, **stage.identity))
    for version, policy in warehouse.state.policies.items():
        found[f"policy {version}"] = policy.rolled_back_to, warehouse.policy(version)["sha256"]
    found["left out"] = dict(warehouse.state.left_out)
    return found


def _lasting(warehouse: Warehouse, name: str, **keys: Any) -> list[str]:
    rows = warehouse.read(name, **keys).to_pylist()
    return [repr({key: value for key, value in row.items() if key not in PASSING}) for row in rows]


def at_each_entry(first: str, second: str,
                  folder: Path) -> Iterator[tuple[int, Path, str | None, str | None]]:
    """The two interleaved at each entry of the first: entry, run, what either refused with."""
    place = 0
    while True:
        root = shutil.copytree(_made() / READY[first], folder / f"{place}")
        refused: list[str | None] = []
        count = -1

        def commit_after(log: Log, what: Any, root: Path = root, refused: list[str | None] = refused,
                         at: int = place) -> bool:
            nonlocal count
            count += 1
            if count == at and not refused:
                with patch.object(Log, "_commit", COMMIT):
                    refused.append(run(second, root))
            return COMMIT(log, what)

        with patch.object(Log, "_commit", commit_after):
            told = run(first, root)
        if not refused:
            return
        yield place, root, told, refused[0]
        place += 1


def in_order(*commands: str, start: str, folder: Path) -> dict[str, Any]:
    root = shutil.copytree(_made() / start, folder)
    for command in commands:
        run(command, root)
    return summary(root)


def check_pair(first: str, second: str, folder: Path) -> None:
    start, points = READY[first], 0
    orders = [in_order(*both, start=start, folder=folder / "-".join(both))
              for both in ((first, second), (second, first))] if first != second else [
        in_order(first, start=start, folder=folder / "once"), in_order(first, first, start=start,
                                                                       folder=folder / "twice")]
    alone = in_order(first, start=start, folder=folder / "alone")
    for place, root, told, refused in at_each_entry(first, second, folder):
        points += 1
        title = f"{second} before entry {place} of {first}; first: {told}; second: {refused}"
        if told:                            # what it says is true: run again it does all there is to do
            assert len(told.splitlines()) == 1, title
            run(first, root)
        if second in LEAVES_OPEN:
            run(second, root)
        allowed = [*orders, alone] if refused else orders
        ended = summary(root)
        assert ended in allowed, f"{title}: {[_difference(ended, order) for order in allowed]}"
        if "damaged" in start:
            run("fix", root)
        assert check_run(open_warehouse(root)).problems == [], title
        fresh = Log(root)          # the log folds to the same state
        assert fresh.state().lives == open_warehouse(root).state.lives
    assert points, f"{first} committed nothing"


def _difference(ended: dict[str, Any], order: dict[str, Any]) -> list[str]:
    return [f"{key}: {str(ended.get(key))[:60]} / {str(order.get(key))[:60]}"
            for key in sorted(ended.keys() | order.keys()) if ended.get(key) != order.get(key)][:4]


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with without_waiting():
        yield


@pytest.mark.parametrize(("first", "second"), [
    pair if pair in SAMPLE else pytest.param(*pair, marks=pytest.mark.slow("121 pairs of commands"))
    for pair in PAIRS])
def test_two_commands_at_once_are_one_after_the_other_or_one_sentence(first: str, second: str,
                                                                      tmp_path: Path) -> None:
    check_pair(first, second, tmp_path)
