"""SQL over a damaged run: no answer from a damaged file, an answer from the others, and a word about it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import warehouse as package
from tests.building.runs import STARTER, new_run
from tests.building.sound import check_run
from tests.building.weather import SCORER, build_run
from warehouse.cli import cli
from warehouse.maintain.fix import fix
from warehouse.sql.database import connect, explain_errors, rows_of
from warehouse.sql.rollup import write_rollup
from warehouse.store import checksums
from warehouse.store.checksums import part_damage
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

# Entries 7, 9 and 11 of the log begin the stages of iteration 1.
PARTS = ("completions/iteration=1/purpose=train/generation=7/part-00001.parquet",
         "prompts/iteration=1/purpose=train/generation=7/part-00000.parquet",
         f"samples/iteration=1/purpose=train/scorer={SCORER}/generation=9/part-00001.parquet",
         "train/iteration=1/generation=11/samples-00000.parquet",
         "train/iteration=1/generation=11/steps-00000.parquet")
MANIFESTS = ("completions/iteration=1/purpose=train/generation=7/manifest.json",
             f"samples/iteration=1/purpose=train/scorer={SCORER}/generation=9/manifest.json",
             "train/iteration=1/generation=11/manifest.json")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return build_run(folder, iterations=3, evals=(), num_tasks=4, group_size=4)


@pytest.fixture
def run(built: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(built.root, tmp_path / "run")
    return open_warehouse(tmp_path / "run")


def ask(command: str, run: Warehouse, *words: object) -> Result:
    return CliRunner().invoke(cli, [command, str(run.root), *map(str, words)])


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def counts(run: Warehouse) -> list[tuple[int, ...]]:
    """Rows of each table by iteration, in one line."""
    return [tuple(row.values()) for row in rows_of(connect(run), " UNION ALL ".join(
        f"SELECT {number} AS number, iteration, count(*) AS num FROM {table} GROUP BY iteration"
        for number, table in enumerate(("completions", "prompts", "samples", "train_samples", "train_steps")))
        + " ORDER BY ALL")]


def flip_bit(path: Path, name: str) -> None:
    """Flip a bit in the middle of the values of a column."""
    group = pq.read_metadata(path).row_group(0)
    chunk = next(chunk for chunk in map(group.column, range(group.num_columns))
                 if chunk.path_in_schema.split(".")[0] == name)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    overwrite(path, bytes(content))


def test_a_flipped_bit_of_a_token_is_never_read_as_another(run: Warehouse) -> None:
    query = "SELECT sum(list_sum(completion_ids)) AS sum FROM completions WHERE iteration = 1"
    assert int(ask("sql", run, query, "--format", "csv").stdout.split()[1]) > 0
    flip_bit(run.root / PARTS[0], "completion_ids")
    result = ask("sql", run, query, "--format", "csv")
    assert (result.exit_code, result.stdout.strip('sum\n"')) == (0, "")
    assert f"warning: {run.root / PARTS[0]} does not match its manifest (sha256 differs): rollout of" in (
        result.stderr)
    strict = ask("sql", run, query, "--strict")
    assert strict.exit_code == 1 and str(run.root / PARTS[0]) in strict.stderr and not strict.stdout
    with pytest.raises(StageError, match="does not match its manifest"):
        package.open(run.root, strict=True)


@pytest.mark.parametrize(("name", "content", "lost"), [
    (PARTS[0], b"torn", (0, 1)), (PARTS[1], b"", (0, 1)), (PARTS[2], None, (2,)), (PARTS[3], b"torn", (3, 4)),
    (PARTS[4], None, (3, 4))])
def test_a_damaged_part_stops_only_what_needs_it(run: Warehouse, name: str, content: bytes | None,
                                                 lost: tuple[int, ...]) -> None:
    write_rollup(run)
    before = counts(run)
    (run.root / name).unlink()
    if content is not None:
        (run.root / name).write_bytes(content)
    assert counts(run) == [row for row in before if not (row[0] in lost and row[1] == 1)]
    for command, words in (("summary", ()), ("watch", ()), ("sql", ("FROM iteration_stats",))):
        result = ask(command, run, *words)
        assert result.exit_code == 0 and result.stderr.count("warning: ") == 1, (command, result.output)
        assert str(run.root / name) in result.stderr
        strict = ask(command, run, *words, "--strict")
        assert strict.exit_code == 1 and str(run.root / name) in strict.stderr
    assert any(name in problem for problem in check_run(run).problems)


@pytest.mark.parametrize(("name", "content"), [
    (MANIFESTS[0], b"{}"), (MANIFESTS[1], b""), (MANIFESTS[2], b"[]"), (MANIFESTS[1], b"\xff"),
    (MANIFESTS[0], b'{"facts": {}, "parts": [1]}')])
def test_an_invalid_manifest_stops_only_what_needs_it(run: Warehouse, name: str, content: bytes) -> None:
    overwrite(run.root / name, content)
    for command, words in (("summary", ()), ("sql", ("SELECT count(*) AS num FROM stages",))):
        result = ask(command, run, *words)
        assert result.exit_code == 0, result.output
        assert result.stderr.count("warning: ") == 1 and str(run.root / name) in result.stderr
        assert ask(command, run, *words, "--strict").exit_code == 1
    scored = rows_of(connect(run), "SELECT DISTINCT iteration FROM samples ORDER BY 1")
    assert [row["iteration"] for row in scored] == ([0, 2] if "samples" in name else [0, 1, 2])


@pytest.mark.parametrize("name", MANIFESTS[:2])
def test_a_manifest_that_is_gone_leaves_no_row_out_without_a_word(run: Warehouse, name: str) -> None:
    for gone in (run.root / name, (run.root / name).with_name("manifest-copy.json")):
        gone.unlink()
    result = ask("sql", run, "SELECT count(*) AS num FROM completions, samples")
    assert result.exit_code == 0 and result.stderr.count("warning: ") == 1
    assert f"{run.root / name} is damaged (it is missing)" in result.stderr
    assert ask("summary", run, "--strict").exit_code == 1
    [problem] = check_run(run).problems
    assert problem.startswith(str(run.root / name))
    fix(run, check_run(run).changes)
    said = f"{'rollout' if name == MANIFESTS[0] else 'score'} of iteration 1, purpose train"
    warning = ask("sql", run, "SELECT 1").stderr
    assert said in warning and "is not complete, but stages" in warning
    assert not ask("sql", run, "SELECT 1", "--partial").stderr


@pytest.mark.parametrize("column", ["payload", "source", "position"])
def test_damaged_tasks_are_named(run: Warehouse, column: str) -> None:
    part, = run.parts("tasks")
    flip_bit(part, column)
    [problem] = check_run(run).problems
    assert str(part) in problem and problem.endswith("Restore it from a copy of the run.")
    assert "--fix" not in problem
    result = ask("sql", run, "SELECT count(*) AS num FROM tasks", "--format", "csv")
    assert result.stdout == "num\n0\n" and f"{part} is unreadable, or differs" in result.stderr
    assert "there are no tasks. Restore it from a copy" in result.stderr
    part.unlink()
    with pytest.raises(StageError, match="holds no tasks"):
        open_warehouse(run.root).verify("tasks")


def cut(path: Path) -> None:
    overwrite(path, path.read_bytes()[:-9])


def flipped(path: Path) -> None:
    flip_bit(path, "token")


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut, flipped, made_a_folder])
def test_a_damaged_vocabulary_is_made_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run = new_run(tmp_path / "run", model=shutil.copytree(STARTER, tmp_path / "model"))
    query = "SELECT count(*) AS num, string_agg(token, ',' ORDER BY token_id) AS all FROM vocabulary"
    before = rows_of(connect(run), query)
    assert before[0]["num"] > 100
    damage(run.root / "vocabulary.parquet")
    assert rows_of(connect(run), query) == before and ask("summary", run).exit_code == 0
    (Path(run.model) / "tokenizer.json").rename(tmp_path / "gone")
    overwrite(run.root / "vocabulary.parquet", b"PAR1")
    assert "there are no texts of tokens" in ask("sql", run, query).stderr
    (run.root / "vocabulary.parquet").unlink()
    (run.root / "vocabulary.parquet" / "notes").mkdir(parents=True)
    assert "vocabulary.parquet is a folder. Move it out" in ask("sql", run, query).stderr


@pytest.mark.parametrize("name", ["groups.parquet", "rollup.json"])
def test_a_damaged_rollup_is_made_again(run: Warehouse, name: str) -> None:
    write_rollup(run)
    before = rows_of(connect(run), "SELECT * FROM groups ORDER BY ALL")
    path, = run.root.glob(f"iterations/rollup-*/{name}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    overwrite(path, bytes(content))
    assert rows_of(connect(run), "SELECT * FROM groups ORDER BY ALL") == before
    assert write_rollup(run) == 3
    assert connect(run).execute("SELECT count(*) FROM fresh_samples").fetchone() == (0,)


def test_a_part_is_hashed_again_only_after_it_changed(run: Warehouse,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def damage(path: Path, facts: dict[str, Any]) -> str:
        hashed.append(path.name)
        return part_damage(path, facts)

    monkeypatch.setattr("warehouse.sql.verified.part_damage", damage)
    connect(run)
    assert len(hashed) == 3 * (2 + 2 + 2 + 3)  # of a training samples, steps and tokens
    hashed.clear()
    connect(run)
    assert not hashed
    part = run.root / PARTS[0]
    part.chmod(0o644)
    part.write_bytes(part.read_bytes())
    connect(run)
    assert hashed == [part.name]
    for content in (b"", b"[]", b"{"):  # derived: made again
        (run.root / "iterations/verified.json").write_bytes(content)
        hashed.clear()
        connect(run)
        assert len(hashed) == 27 and json.loads((run.root / "iterations/verified.json").read_text())


def test_after_a_check_nothing_answers_from_a_part_whose_disk_changed_a_bit(run: Warehouse) -> None:
    part = run.root / PARTS[0]
    connect(run)
    stat, content = part.stat(), bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    overwrite(part, content)
    os.utime(part, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a disk does it: nothing else changes
    checksums._hash_once.cache_clear()  # what another command knows
    assert ask("check", run).exit_code == 1
    checksums._hash_once.cache_clear()
    refused = ask("sql", run, "--strict", "select count(*) from completions")
    assert refused.exit_code == 1 and f"{part} does not match its manifest" in refused.output


def test_an_interrupt_inside_duckdb_is_one_of_python() -> None:
    with pytest.raises(KeyboardInterrupt), explain_errors():
        raise RuntimeError("Query interrupted")
