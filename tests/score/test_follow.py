"""Scoring beside a rollout: programs run while it is under way; the rows are those of a score afterwards."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rollout.parts import Spill, key_of
from score import follow, run
from score.cli import score
from score.follow import Sampling
from score.judging.completions import Questions
from tests.building.runs import back_before, finish, new_run
from tests.building.texts import FLIP, SAME, add_rollout, fenced
from warehouse.stages import warm
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StopRequest
from warehouse.store import manifests
from warehouse.store.run_folder import Warehouse, open_warehouse

KEYS: dict[str, Any] = {"iteration": 0, "purpose": "train"}
ANSWERS = [("turn", fenced(f"{code}# {number}\n")) for number, code in enumerate([FLIP, SAME] * 4)]
MEASURED = {"cpu_seconds", "wall_seconds", "max_rss_mib", "scored_at"}


class UnderWay:
    """A rollout of two parts whose files appear when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.warehouse = new_run(folder / "run")
        add_rollout(self.warehouse, ANSWERS, part_size=4)
        self.warehouse = back_before(self.warehouse, "rollout", complete=True, **KEYS)
        self.folder, self.aside = self.warehouse.folder("completions", **KEYS), folder / "aside"
        shutil.copytree(self.folder, self.aside)
        for path in self.folder.iterdir():
            path.unlink()

    def save(self, part: int, number: int) -> None:
        """What is finished of a part so far."""
        rows = pq.read_table(self.aside / f"part-{part:05d}.parquet").to_pylist()[:number]
        spill = Spill(self.folder / f"part-{part:05d}.parquet", map(key_of, rows), {}, {})
        for row in rows:
            spill.add(row)
        spill.save()

    def show(self, *names: str) -> None:
        for name in names:
            shutil.copy(self.aside / name, self.folder / f".tmp-{name}")
            (self.folder / f".tmp-{name}").rename(self.folder / name)

    def finish(self) -> None:
        """The rollout is complete."""
        finish(open_warehouse(self.warehouse.root), "rollout", **KEYS)


def beside(warehouse: Warehouse, meanwhile: Callable[[], object]) -> Result:
    """The command as the loop starts it, and what happens while it runs."""
    thread = threading.Thread(target=meanwhile)
    thread.start()
    done = CliRunner().invoke(score, [str(warehouse.root), "--iteration", "0"], env={warm.BESIDE: "2"})
    thread.join()
    return done


def rows_of(warehouse: Warehouse) -> list[dict[str, Any]]:
    scorer, = warehouse.state.scorers(0, "train")
    return [{name: value for name, value in row.items() if name not in MEASURED}
            for row in warehouse.read("samples", **KEYS, scorer=scorer).to_pylist()]


def wait_until(true: Callable[[], object]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within half a minute")


def test_programs_run_before_their_part_is_whole_and_rows_are_those_of_a_score_afterwards(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, executors, golden, ran = UnderWay(tmp_path), list[Any](), list[int](), list[int]()
    run_beside, judged = run.run_beside, run.score_part
    monkeypatch.setattr(follow, "WHOLE_SECONDS", 0.0)
    monkeypatch.setattr(run, "run_beside", lambda executor, *rest: (
        executors.append(executor), golden.append(executor.num_run), run_beside(executor, *rest)))
    monkeypatch.setattr(run, "score_part", lambda session, *rest: (ran.append(session.executor.num_run),
                                                                   judged(session, *rest))[1])

    def sample() -> None:
        under_way.save(0, 3)
        under_way.save(1, 2)
        wait_until(lambda: executors and executors[0].num_run == golden[0] + 5)
        under_way.show("part-00000.parquet")
        wait_until(lambda: len(ran) == 1)
        under_way.show("part-00001.parquet")
        under_way.finish()
    done = beside(under_way.warehouse, sample)
    assert done.exit_code == 0, done.output
    assert ran == [golden[0] + 6, golden[0] + 8]
    assert "8 completions, 8 program runs" in done.output
    twin = new_run(tmp_path / "twin")
    add_rollout(twin, ANSWERS, part_size=4)
    assert CliRunner().invoke(score, [str(twin.root)]).exit_code == 0
    assert rows_of(under_way.warehouse) == rows_of(twin)


def test_lanes_do_not_wait_for_the_slowest_program_of_a_whole_part(tmp_path: Path) -> None:
    under_way = UnderWay(tmp_path)
    under_way.show("part-00000.parquet")
    sampling = Sampling(under_way.warehouse, Shard(), StopRequest(None, 0), **KEYS)
    programs = sampling.programs(Questions(under_way.warehouse, 0, "train"))
    assert all(next(programs) for _ in range(4)) and next(programs) is None
    under_way.save(1, 3)
    assert next(program for program in programs if program)
    under_way.show("part-00001.parquet")
    under_way.finish()
    assert len([program for program in programs if program]) == 6


def test_an_object_store_is_not_asked_while_nothing_comes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = UnderWay(tmp_path)
    under_way.save(0, 3)
    sampling = Sampling(under_way.warehouse, Shard(), StopRequest(None, 0), **KEYS)
    questions = Questions(under_way.warehouse, 0, "train")
    monkeypatch.setattr(manifests, "file_names", lambda folder, _pattern: pytest.fail(f"asked for {folder}"))
    sampling.wait_for_plan()
    programs = sampling.programs(questions)
    assert all(next(programs) for _ in range(3)) and next(programs) is None
    under_way.save(0, 4)
    assert next(program for program in programs if program)


def test_what_another_worker_scores_between_two_looks_is_no_stranger(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, parts = UnderWay(tmp_path), Warehouse.parts
    under_way.show("part-00000.parquet", "part-00001.parquet")
    root = under_way.warehouse.root
    assert CliRunner().invoke(score, [str(root), "--iteration", "0"]).exit_code == 75
    [folder] = root.glob("samples/*/*/*/*")
    folder.rename(tmp_path / "scored")
    folder.mkdir()

    def between(warehouse: Warehouse, table: str, **keys: Any) -> list[Path]:
        listed = parts(warehouse, table, **keys)
        if table == "completions" and ready and not list(folder.glob("part-00001.parquet")):
            shutil.copy(tmp_path / "scored" / "part-00001.parquet", folder)
            return listed[:1]
        return listed
    ready = list[bool]()
    monkeypatch.setattr(run, "check_golden", lambda *_: len(ready.append(True) or ready))
    monkeypatch.setattr(Warehouse, "parts", between)
    done = CliRunner().invoke(score, [str(root), "--iteration", "0"])
    assert done.exit_code == 75 and "its parts so far are scored" in done.output, done.output


def test_told_to_stop_it_stops_and_run_again_it_finishes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = UnderWay(tmp_path)
    under_way.save(0, 3)
    run_beside = run.run_beside
    monkeypatch.setattr(run, "run_beside", lambda *rest: (os.kill(os.getpid(), signal.SIGTERM),
                                                          run_beside(*rest)))
    done = beside(under_way.warehouse, lambda: None)
    assert done.exit_code == 75 and "Stopped because SIGTERM was received, while iteration 0" in done.output
    monkeypatch.setattr(run, "run_beside", run_beside)
    under_way.show("part-00000.parquet", "part-00001.parquet")
    under_way.finish()
    assert beside(under_way.warehouse, lambda: None).exit_code == 0
    assert len(rows_of(open_warehouse(under_way.warehouse.root))) == 8
