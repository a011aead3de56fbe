"""`warehouse sql`, `summary` and `schema` as a person at a terminal meets them."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest
from click.testing import CliRunner, Result

from tests.building.weather import build_run, empty_run
from warehouse.cli import cli
from warehouse.inspect.render import as_table
from warehouse.inspect.summary import sparkline
from warehouse.sql.database import interruptible
from warehouse.store.errors import printable
from warehouse.store.run_folder import Warehouse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(tmp_path_factory.mktemp("runs") / "run", iterations=3, evals=(0, 2))


def warehouse(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


SMALL = ("SELECT iteration, purpose, round(pass_at_1, 3) AS p FROM iteration_stats WHERE iteration < 1 "
         "ORDER BY ALL")


def test_formats_hold_the_same_rows(run: Warehouse, tmp_path: Path) -> None:
    assert warehouse("sql", run.root, SMALL).stdout == (
        "iteration  purpose  p\n---------  -------  -----\n"
        "        0  eval     0.281\n        0  train    0.234\n").replace("p\n---", "    p\n---")
    assert warehouse("sql", run.root, SMALL, "--format", "csv").stdout == (
        "iteration,purpose,p\n0,eval,0.281\n0,train,0.234\n")
    for style in ("json", "jsonl"):
        lines = warehouse("sql", run.root, SMALL, "--format", style).stdout.splitlines()
        assert [json.loads(line) for line in lines] == [{"iteration": 0, "purpose": "eval", "p": 0.281},
                                                        {"iteration": 0, "purpose": "train", "p": 0.234}]
    assert warehouse("sql", run.root, SMALL, "--format", "markdown").stdout == (
        "| iteration | purpose | p |\n|---|---|---|\n| 0 | eval | 0.281 |\n| 0 | train | 0.234 |\n")
    assert (
        warehouse("sql", run.root, SMALL, "--format", "parquet", "-o", tmp_path / "p.parquet").exit_code == 0
    )
    assert pl.read_parquet(tmp_path / "p.parquet")["p"].to_list() == [0.281, 0.234]


def test_rows_are_limited_and_it_is_said(run: Warehouse) -> None:
    query = "SELECT sample_index FROM samples ORDER BY ALL"
    shown = warehouse("sql", run.root, query).stdout.splitlines()
    assert len(shown) == 2 + 200 + 1
    assert shown[-1] == "(first 200 rows; --limit 0 shows all)"
    assert len(warehouse("sql", run.root, query, "--limit", 0).stdout.splitlines()) == 2 + 5 * 128
    assert len(warehouse("sql", run.root, query, "--format", "csv").stdout.splitlines()) == 1 + 5 * 128


def test_lists_and_long_text_are_cut_unless_asked_for(run: Warehouse) -> None:
    query = "SELECT completion_ids, completion FROM completions WHERE iteration = 0 ORDER BY ALL LIMIT 1"
    short = warehouse("sql", run.root, query).stdout
    assert " values]" in short and "…" in short
    full = warehouse("sql", run.root, query, "--full").stdout
    assert " values]" not in full and "return a" in full


def test_model_text_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in as_table(["text"], [["\x1b[2J\x1b]0;owned\x07 fine é"]])
    assert printable("\x1b[31mred\x07 ok é") == "\\x1b[31mred\\x07 ok é"


def test_errors_are_one_message_without_traceback(run: Warehouse, tmp_path: Path) -> None:
    unknown = warehouse("sql", run.root, "SELECT * FROM samplez")
    assert unknown.exit_code == 1
    assert "samplez does not exist" in unknown.stderr and 'Did you mean "samples"' in unknown.stderr
    elsewhere = warehouse("sql", run.root, "SELECT s.completion FROM samples AS s")
    assert "Tables and views with such a column: `warehouse schema completion`.\n" in elsewhere.stderr
    assert "payload" not in elsewhere.stderr
    field = warehouse("sql", run.root, "SELECT difficulty FROM tasks")
    assert "A field of a task is payload->>'difficulty' FROM tasks." in field.stderr
    assert "avg(correct::int)" in warehouse("sql", run.root, "SELECT avg(truncated) FROM samples").stderr
    syntax = warehouse("sql", run.root, "SELEC 1")
    assert syntax.exit_code == 1 and "syntax error" in syntax.stderr and "Traceback" not in syntax.stderr
    late = warehouse("sql", run.root, "SELECT error('late') FROM samples")
    assert late.exit_code == 1 and "late" in late.stderr and isinstance(late.exception, SystemExit)
    nowhere = warehouse("sql", tmp_path, "SELECT 1")
    assert nowhere.exit_code == 1 and "is not a run folder" in nowhere.stderr
    no_file = warehouse("sql", run.root, "SELECT 1", "--format", "parquet")
    assert no_file.exit_code == 1 and "--output" in no_file.stderr


def test_a_torn_part_is_left_out_and_named(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=(), num_tasks=2, group_size=2)
    part = run.parts("completions", iteration=0, purpose="train")[0]
    part.chmod(0o644)
    part.write_bytes(b"torn")
    result = warehouse("sql", run.root, "SELECT count(*) AS num FROM completions", "--format", "csv")
    assert (result.exit_code, result.stdout) == (0, "num\n0\n")
    assert result.stderr == (f"warning: {part} does not match its manifest (sha256 differs): "
                             "rollout of iteration 0, purpose train is left out. `warehouse check "
                             f"{run.root}` says what to do.\n")
    assert warehouse("sql", run.root, "SELECT 1", "--strict").exit_code == 1


def test_interrupting_a_query_ends_it_at_once(run: Warehouse) -> None:
    forever = "SELECT 'begun' AS word; SELECT count(*) FROM range(1000000000000) AS a"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from warehouse.cli import cli; cli()", "sql", str(run.root), forever],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and any("begun" in line for line in process.stdout)   # and on with the other one
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert stderr.strip() == "Aborted!"


def test_the_summary_is_one_screen(run: Warehouse) -> None:
    lines = warehouse("summary", run.root).stdout.splitlines()
    assert lines[0].startswith(f"{run.root}  base base  8 tasks  640 completions")
    table = [line for line in lines if "   train" in line or " 14.0 s" in line]
    assert table == [
        "iteration  pass@1  pass@16  reward truncated  tokens zero-var   mismatch  rollout   score   train",
        "        0     .23      .88    4.07       .02    41.5      .00    4.9e-07   14.0 s   2.0 s   9.8 s",
        "        1     .20      .75    4.04       .01    40.1      .00    5.0e-07   14.0 s   2.0 s   9.8 s",
        "        2     .30     1.00    4.75       .04    41.6      .00    5.0e-07   14.0 s   2.0 s   9.8 s"]
    assert lines[-4:] == ["        0  eval     .28     1.00    4.66       .02    41.1      .00",
                          "        2  eval     .23      .88    4.13       .02    40.6      .00",
                          "", f"Next: rollout {run.root}"]
    assert len(warehouse("summary", run.root, "--last", 1).stdout.splitlines()) < len(lines)


def test_one_iteration_is_one_line(run: Warehouse) -> None:
    assert warehouse("summary", run.root, "--iteration", 1).stdout == (
        "iteration 1  pass@1 .20  pass@16 .75  truncated .01  mismatch 5.0e-07  "
        "rollout 14.0 s  score 2.0 s  train 9.8 s\n")
    assert warehouse("summary", run.root, "--line", "--purpose", "eval").stdout == (
        "iteration 2  eval  pass@1 .23  pass@16 .88  truncated .02\n")
    missing = warehouse("summary", run.root, "--iteration", 9, "--line")
    assert missing.exit_code == 1 and "Iteration 9 (train) has no complete scores" in missing.stderr
    assert "Run `score` on it first." in missing.stderr
    missing = warehouse("summary", run.root, "--iteration", 2, "--purpose", "distil")
    assert "to sum up. It has those of --purpose eval, train.\n" in missing.stderr


def test_the_summary_of_an_empty_run_says_what_comes_next(tmp_path: Path) -> None:
    run = empty_run(tmp_path / "run")
    assert f"Nothing is scored yet. Next: rollout {run.root}" in warehouse("summary", run.root).stdout


def test_sparklines_keep_ends_gaps_and_spikes() -> None:
    assert sparkline([0, 1, None, 7]) == "▁▂ █"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([None]) == ""
    assert len(sparkline(list(range(1000)))) == 60


def test_the_schema_explains_tables_views_and_macros() -> None:
    everything = warehouse("schema").stdout
    assert "behaviour_logprobs" in everything and "pass_at_k(n, c, k)" in everything
    alone = warehouse("schema", "policies").stdout
    assert alone.startswith("policies\n  One row per policy") and "behaviour_logprobs" not in alone
    unknown = warehouse("schema", "polices")
    assert unknown.exit_code == 1 and "There is no table, view, macro or column 'polices'" in unknown.stderr


def test_ctrl_c_while_its_thread_starts_leaves_no_query_running(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        signal.raise_signal(signal.SIGINT)

    connection, handler = duckdb.connect(), signal.signal(signal.SIGINT, signal.default_int_handler)
    endless = "SELECT sum(a.range * b.range % 7) FROM range(100000) a, range(100000) b, range(100000) c"
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(connection, lambda: connection.execute(endless).fetchall())
        monkeypatch.undo()
        assert connection.execute("SELECT 42").fetchall() == [(42,)]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
