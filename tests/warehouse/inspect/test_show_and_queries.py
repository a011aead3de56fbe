"""The table of ARC papers, names of completions, scripts and formats."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

from score.cli import score
from tests.building.runs import TURN, new_run
from tests.building.texts import SAME, add_rollout, fenced
from tests.building.weather import SCORER, Weather, build_run, write_iteration
from warehouse.cli import cli
from warehouse.inspect.queries import write_answers
from warehouse.inspect.show import pair_lines, parse_name
from warehouse.sql.database import connect, rows_of
from warehouse.store.names import completion_name
from warehouse.store.run_folder import Warehouse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(tmp_path_factory.mktemp("runs") / "run", iterations=3, evals=(0, 2))


def warehouse(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_result_table_is_a_mean_over_tasks(run: Warehouse) -> None:
    [found] = rows_of(connect(run), "FROM arc_results_of('samples') WHERE iteration = 1 "
                                    "AND purpose = 'train'")
    samples = run.read("samples", iteration=1, purpose="train", scorer=SCORER).to_pylist()
    tasks = [
        [row for row in samples if row["task_id"] == name] for name in sorted({r["task_id"] for r in samples})
    ]

    def mean(measure: str) -> float:
        return float(np.mean([np.mean([row[measure] for row in task]) for task in tasks]))

    assert (found["tasks"], found["n"], found["most n"]) == (8, 16, 16)
    assert found["valid code"] == pytest.approx(mean("valid_code"))
    assert found["valid outputs"] == pytest.approx(mean("valid_outputs"))
    assert found["train pixel score"] == pytest.approx(mean("train_pixel_score"))
    assert found["test pass rate"] == pytest.approx(mean("test_is_correct"))
    assert found["unique outputs"] == pytest.approx(np.mean(
        [len({row["fingerprint"] for row in task} - {None}) / 16 for task in tasks]))
    assert found["is_correct"] == pytest.approx(
        np.mean(
            [
                any(r["train_is_correct"] for r in task) and any(r["test_is_correct"] for r in task)
                for task in tasks
            ]
        )
    )


def test_every_evaluation_is_asked_for_by_one_purpose(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=(), num_tasks=2, group_size=4, trained=False)
    for purpose in ("eval-easy", "eval-hard", "eval-hard-turn2"):
        write_iteration(run, 0, purpose, Weather(), np.random.default_rng(1), num_tasks=2, group_size=4)
    assert warehouse("export", run.root, tmp_path / "rows.jsonl", "--purpose",
                     "eval").exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["purpose"] for row in rows} == {"eval-easy", "eval-hard", "eval-hard-turn2"}


def test_names_of_completions() -> None:
    assert parse_name("3/00d62c1b/5") == [(3, "train", "00d62c1b", 5)]
    assert parse_name("3/eval/00d62c1b/5")[0] == (3, "eval", "00d62c1b", 5)
    assert parse_name("3/eval-big/a/b/5")[0] == (3, "eval-big", "a/b", 5)
    assert parse_name("3/distil-big/a/5")[0] == (3, "distil-big", "a", 5)
    assert parse_name("3/evaluation/a/5") == [(3, "train", "evaluation/a", 5)]
    assert parse_name("3/pool/a/5") == [(3, "train", "pool/a", 5)]
    for key in ((3, "train", "eval/a", 5), (3, "train", "eval", 5), (3, "eval", "train/a", 5),
                (3, "eval", "a", 5), (3, "train", "train/a", 5), (3, "train", "a/b", 5)):
        assert parse_name(completion_name(*key))[0] == key
    assert completion_name(3, "train", "a/b", 5) == "3/a/b/5"


def test_a_task_that_is_called_like_a_purpose_is_found(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"eval/a": TURN})
    add_rollout(run, [("eval/a", fenced(SAME))])
    assert CliRunner().invoke(score, [str(run.root)]).exit_code == 0
    for name in ("0/eval/a/0", "0/train/eval/a/0"):
        explained = CliRunner().invoke(score, ["explain", str(run.root), name])
        assert explained.stdout.startswith("completion 0 of task eval/a, iteration 0 train"), explained.output


def test_grids_of_different_heights_stand_side_by_side() -> None:
    lines = pair_lines({"input": [[1, 2], [3, 4]], "output": [[5]]}, None, color=False)
    assert lines == ["  input   expected   output", "   1 2     5         (none)", "   3 4"]


def test_a_file_has_the_format_of_its_suffix_and_every_row(run: Warehouse, tmp_path: Path) -> None:
    query = "SELECT task_id, sample_index FROM samples ORDER BY ALL"
    stored = warehouse("sql", run.root, query, "--format", "csv").stdout
    for name in ("rows.csv", "rows.json", "rows.jsonl", "rows.parquet", "rows.md", "rows.txt"):
        result = warehouse("sql", run.root, query, "-o", tmp_path / "new" / name)
        assert (result.exit_code, result.stdout) == (0, ""), name
    texts = {path.suffix: path.read_text() for path in (tmp_path / "new").iterdir()
             if path.suffix != ".parquet"}
    assert texts[".csv"] == stored and stored.count("\n") == 1 + 640
    assert texts[".json"] == texts[".jsonl"] and texts[".json"].count("\n") == 640
    assert json.loads(texts[".json"].splitlines()[0]) == {"task_id": "task-000", "sample_index": 0}
    assert pl.read_parquet(tmp_path / "new" / "rows.parquet").shape == (640, 2)
    assert texts[".md"].startswith("| task_id |") and texts[".md"].count("\n") == 2 + 640
    assert texts[".txt"].startswith("task_id ") and texts[".txt"].count("\n") == 2 + 640
    assert warehouse("sql", run.root, query, "-o", tmp_path / "some.csv", "--limit", 3).exit_code == 0
    assert (tmp_path / "some.csv").read_text().count("\n") == 1 + 3
    warehouse("sql", run.root, query, "--format", "json", "-o", tmp_path / "rows.txt", "--limit", 1)
    assert json.loads((tmp_path / "rows.txt").read_text())["task_id"] == "task-000"
    warehouse("sql", run.root, f"{query} LIMIT 0", "-o", tmp_path / "none.jsonl")
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_a_file_that_cannot_be_written_is_one_sentence(run: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("x.csv", "x.parquet"):
        result = warehouse("sql", run.root, "SELECT 1", "-o", tmp_path / "file" / name)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert f"Cannot write {tmp_path / 'file' / name}" in result.stderr
    other = warehouse("sql", run.root, "SELECT 1", "-o", tmp_path / "rows.xlsx")
    assert other.exit_code == 1 and not (tmp_path / "rows.xlsx").exists()
    taken = warehouse("sql", run.root, "SELECT 1", "-o", "/proc/x.parquet")
    assert taken.exit_code == 1 and "Cannot write /proc/x.parquet" in taken.stderr
    exported = warehouse("export", run.root, "/proc/x.jsonl")
    assert exported.exit_code == 1 and "Cannot write /proc/x.jsonl" in exported.stderr
    assert "warehouse check" not in taken.stderr


def test_markdown_says_where_it_stops(run: Warehouse) -> None:
    shown = warehouse("sql", run.root, "SELECT sample_index FROM samples", "--format", "markdown").stdout
    assert shown.splitlines()[-2:] == ["", "(first 200 rows; --limit 0 shows all)"]
    assert len(shown.splitlines()) == 2 + 200 + 2


def test_numbers_that_are_none_and_times_with_zones_are_answers(run: Warehouse) -> None:
    query = "SELECT corr(1, x) AS r, [now()] AS at, now() AS t, now() AS t FROM range(2) AS a(x)"
    for style in ("table", "markdown", "csv", "json"):
        result = warehouse("sql", run.root, query, "--format", style)
        assert result.exit_code == 0, result.stderr
        if style == "json":
            assert json.loads(result.stdout)["r"] is None and "t_1" in json.loads(result.stdout)
        else:
            assert "nan" in result.stdout


def pipe_script(run: Warehouse, text: str) -> Result:
    return CliRunner().invoke(cli, ["sql", str(run.root), "-"], input=text)


def test_a_piped_script_prints_answers_alone(run: Warehouse, tmp_path: Path) -> None:
    done = pipe_script(run, "select 6 * 7\n  as answer;\n-- a comment\nselect 'last' as word")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "answer\n------\n    42\nword\n----\nlast\n", "")
    assert pipe_script(run, "select 1 as one;\n-- the end\n").exit_code == 0
    for arguments in (("sql", run.root, "-"), ("sql", run.root, "-f", tmp_path / "script.sql")):
        (tmp_path / "script.sql").write_text("select 1 as one;\nselect 2 as two")
        asked = CliRunner().invoke(cli, [*map(str, arguments)], input="select 1 as one;\nselect 2 as two")
        assert asked.stdout.split() == ["one", "---", "1", "two", "---", "2"]
    assert "Give one of QUERY, -c and --file" in warehouse("sql", run.root).stderr


def test_a_piped_script_ends_at_its_first_error_with_1(run: Warehouse) -> None:
    done = pipe_script(run, "select 42 as answer;\nselect nothing;\nselect 43")
    assert done.exit_code == 1 and done.stdout == "answer\n------\n    42\n"
    assert done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
    garbled = CliRunner().invoke(cli, ["sql", str(run.root), "-"], input=b"select '\xff';\n")
    assert garbled.exit_code == 1 and "not UTF-8" in garbled.stderr


def test_statements_of_one_line_are_all_answered(run: Warehouse) -> None:
    done = pipe_script(run, "select 1 as one; select 2 as two; -- both\nselect 3 as three;\n")
    assert done.stdout.split() == ["one", "---", "1", "two", "---", "2", "three", "-----", "3"]
    commented = warehouse("sql", run.root, "select 'é;' as word; -- the end", "--format", "csv")
    assert commented.stdout == "word\né;\n"


def test_a_query_may_begin_with_a_comment_and_null_is_named(run: Warehouse) -> None:
    answer = warehouse("sql", run.root, "-c", "-- what there is\nselect 1 as a, null as b, '' as c")
    assert answer.stdout.splitlines()[2].split() == ["1", "NULL"]
    assert "Did you mean '--format'" in warehouse("sql", run.root, "--formt", "csv", "select 1").stderr


def test_a_table_that_nobody_could_read_is_refused(run: Warehouse) -> None:
    for query in ("create table t as select 1", "insert into samples select * from samples",
                  "select 1; create view v as select 1"):
        done = warehouse("sql", run.root, query)
        assert done.exit_code == 1 and "SQL cannot change the run" in done.stderr
        assert "Count" not in done.stdout
    kept = warehouse("sql", run.root, "create temp table t as select 42 as answer; from t")
    assert (kept.exit_code, kept.stdout) == (0, "answer\n------\n    42\n")


def test_a_column_is_found_by_its_name(run: Warehouse) -> None:
    assert "Columns: purpose, task_id, n_a, c_a, n_b, c_b, rate_a" in warehouse("schema", "compare").output
    found = warehouse("schema", "first_output")
    assert found.exit_code == 0, found.stderr
    assert found.stdout.startswith("first_output\n") and "The first completion of its group" in found.stdout
    assert "  samples " in found.stdout and "  all_samples " in found.stdout
    unknown = warehouse("schema", "first_outputs")
    assert unknown.exit_code == 1 and "no table, view, macro or column 'first_outputs'" in unknown.stderr


@pytest.mark.parametrize(("query", "said"), [
    ("FROM gains(0, 1, 'eval')", True), ("SELECT task_id FROM compare(9, 2)", True),
    ("SELECT 1 WHERE false", False)])
def test_a_comparison_without_rows_says_what_it_pairs(run: Warehouse, query: str, said: bool) -> None:
    result = warehouse("sql", run.root, query)
    assert result.exit_code == 0
    assert said == ("To evaluate\npolicy N: `rollout RUN --eval --iteration N`" in result.stderr)


def test_what_explain_suggests_works(run: Warehouse) -> None:
    for name, purpose in (("1/task-001/99", "train"), ("2/eval/task-00'1/0", "eval")):
        missing = CliRunner().invoke(score, ["explain", str(run.root), name])
        assert missing.exit_code == 1
        suggested = missing.stderr.partition("List them with ")[2].strip()
        assert f"purpose = '{purpose}'" in suggested
        words = shlex.split(suggested.strip("`"))
        assert words[:2] == ["warehouse", "sql"]
        listed = warehouse(*words[1:])
        assert listed.exit_code == 0 and "task-001" in listed.stdout, listed.stderr


def test_what_is_printed_on_a_terminal_cannot_steer_it(run: Warehouse, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    query = "select chr(27) || '[31m' || chr(8238) as marks"
    for on_terminal, shown in ((True, "\\x1b[31m\\u202e"), (False, "\x1b[31m\u202e")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda value=on_terminal: value)
        write_answers(connect(run), query, style="csv")
        assert capsys.readouterr().out == f"marks\n{shown}\n"
