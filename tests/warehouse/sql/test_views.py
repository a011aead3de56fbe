"""Views and macros against the same numbers worked out in Python, and the plans they run by."""

import contextlib
import json
import os
import shlex
import shutil
import tomllib
from fractions import Fraction
from importlib.resources import files
from math import comb
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.building.runs import back_before, begin, score_again, write_manifest_again
from tests.building.sound import check_run
from tests.building.texts import THOUGHTS, add_rollout
from tests.building.weather import SCORER, Weather, build_run, empty_run, write_iteration
from tests.chaos.test_limits import files_of
from train.inputs.inputs import scorer_to_train
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.fix import fix
from warehouse.sql.database import (
    _defined,
    connect,
    define,
    empty_connection,
    new_connection,
    refresh_sql,
    rows_of,
)
from warehouse.sql.dictionary import described_columns
from warehouse.sql.inventory import take_inventory
from warehouse.sql.script import definitions
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.tasks.answers import behind_thoughts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(tmp_path_factory.mktemp("runs") / "run", iterations=4, evals=(0, 3))


@pytest.fixture(scope="module")
def connection(run: Warehouse) -> duckdb.DuckDBPyConnection:
    return connect(run)


def one(connection: duckdb.DuckDBPyConnection, query: str) -> object:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


@pytest.mark.parametrize("room", ["a file", "no file", "no folder", "damaged", "a folder of others"])
def test_a_connection_that_copies_what_is_defined_has_all_of_it(room: str, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no" if room == "no folder" else tmp_path))
    copied, made = new_connection(), new_connection()
    if room == "damaged":
        _defined().write_bytes(b"")
    if room == "a folder of others":
        _defined().parent.chmod(0o777)
    with files_of(1024) if room == "no file" else contextlib.nullcontext():
        define(copied, "memory")
    assert bool(list(tmp_path.glob("*/*"))) == (room not in ("no file", "no folder"))
    made.execute(definitions())
    for query in ("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
                  "ORDER BY ALL",
                  "SELECT function_name, parameters::VARCHAR AS parameters FROM duckdb_functions() "
                  "WHERE NOT internal ORDER BY ALL", "SELECT value FROM duckdb_settings() ORDER BY name"):
        assert rows_of(copied, query) == rows_of(made, query) != []


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        (1, 0, 1),
        (1, 1, 1),
        (16, 3, 4),
        (480, 7, 128),
        (10_000, 1, 9_999),
        (10_000, 137, 512),
        (10_000, 9_999, 2),
        (10_000, 5_000, 10_000),
    ],
)
def test_pass_at_k_is_exact_against_fractions(n: int, c: int, k: int) -> None:
    connection = empty_connection()
    exact = float(1 - Fraction(comb(n - c, k), comb(n, k)))
    assert one(connection, f"SELECT pass_at_k({n}, {c}, {k})") == pytest.approx(exact, abs=1e-9)


def test_pass_at_k_is_null_where_fewer_than_k_were_drawn() -> None:
    assert one(empty_connection(), "SELECT pass_at_k(16, 3, 32)") is None


def test_the_pass_curve_averages_the_tasks(run: Warehouse, connection: duckdb.DuckDBPyConnection) -> None:
    rows = run.read("samples", iteration=2, purpose="train", scorer=SCORER).to_pylist()
    right: dict[str, int] = {}
    for row in rows:
        right[row["task_id"]] = right.get(row["task_id"], 0) + row["correct"]
    assert len(set(right.values())) < len(right)          # two tasks alike: each counts
    chances = [float(1 - Fraction(comb(16 - c, 4), comb(16, 4))) for c in right.values()]
    assert rows_of(connection, "SELECT * EXCLUDE (iteration, purpose) FROM pass_curve "
                               "WHERE iteration = 2 AND purpose = 'train' AND k = 4") == [
        {"k": 4, "pass_at_k": pytest.approx(np.mean(chances)), "num_tasks": len(right), "every_task": True,
         "standard_error": pytest.approx(np.std(chances, ddof=1) / len(right) ** 0.5)}]


def run_with_missing_rewards(folder: Path, num_tasks: int, missing: set[int]) -> Warehouse:
    """A run of one iteration, groups of 8, whose rows of these places have no reward."""
    warehouse = empty_run(folder, num_tasks=num_tasks)
    random = np.random.default_rng(0)
    write_iteration(warehouse, 0, "train", Weather(), random, num_tasks=num_tasks, group_size=8, parts=1)
    path = warehouse.parts("samples", iteration=0, purpose="train", scorer=SCORER)[0]
    table = pq.read_table(path, partitioning=None)
    rewards = [None if index in missing else reward
               for index, reward in enumerate(table["reward"].to_pylist())]
    path.chmod(0o644)
    column = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(column, table.schema.field(column), [rewards]), path)
    write_manifest_again(warehouse.stage("score", iteration=0, purpose="train", scorer=SCORER))
    return warehouse


def test_tasks_with_too_few_completions_never_leave_one_k_alone(tmp_path: Path) -> None:
    warehouse = run_with_missing_rewards(tmp_path / "run", 2, {0})
    rows = rows_of(connect(warehouse), "SELECT k, num_tasks, every_task FROM pass_curve ORDER BY k")
    assert rows[-1] == {"k": 8, "num_tasks": 1, "every_task": False}
    assert rows[-2] == {"k": 4, "num_tasks": 2, "every_task": True}
    assert one(connect(warehouse), "SELECT max_k FROM iteration_stats") == 4


@pytest.mark.parametrize("num_tasks", [10, 12])
def test_a_task_that_could_hardly_be_measured_takes_no_pass_at_k_from_the_others(
        tmp_path: Path, num_tasks: int) -> None:
    """Its seven missing rewards would leave pass@1 of all: pass@8 is that of the others."""
    connection = connect(run_with_missing_rewards(tmp_path / "run", num_tasks, set(range(7))))
    rows = rows_of(connection, "SELECT n, c FROM task_results ORDER BY n")
    others = num_tasks - 1
    assert [row["n"] for row in rows] == [1, *others * [8]]
    reached = pytest.approx(np.mean([row["c"] > 0 for row in rows[1:]]))
    error = pytest.approx(np.std([row["c"] > 0 for row in rows[1:]], ddof=1) / others ** 0.5)
    assert rows_of(connection, "SELECT max_k, pass_at_max_k AS reached, pass_at_max_k_error AS error "
                               "FROM iteration_stats") == [{"max_k": 8, "reached": reached, "error": error}]
    assert rows_of(connection, "SELECT k, pass_at_k, num_tasks FROM pass_bands() ORDER BY k")[-1] == {
        "k": 8, "pass_at_k": reached, "num_tasks": others}
    assert one(connection, "SELECT reach_plain FROM adjusted") == reached
    assert one(connection, "SELECT k_of('train')") == 8 and one(connection, "SELECT k_of('eval')") is None
    assert one(connection, "SELECT k_of(purpose) FROM (SELECT 'eval' AS purpose)") is None


def test_groups_count_what_was_measured(run: Warehouse, connection: duckdb.DuckDBPyConnection) -> None:
    rows = run.read("samples", iteration=1, purpose="train", scorer=SCORER).to_pylist()
    group = [row for row in rows if row["task_id"] == "task-003"]
    found = rows_of(connection, "SELECT n, c, reward_mean, reward_std, distinct_outputs, "
                                "distinct_wrong_outputs, num_wrong_outputs "
                                "FROM groups WHERE iteration = 1 AND purpose = 'train' "
                                "AND task_id = 'task-003'")
    rewards = np.array([row["reward"] for row in group])
    valid = [(row["fingerprint"], row["correct"]) for row in group if row["fingerprint"]]
    wrong = [fingerprint for fingerprint, correct in valid if not correct]
    assert 1 < len(set(wrong)) < len(wrong) < len(valid)
    assert found == [
        {
            "n": 16,
            "c": sum(row["correct"] for row in group),
            "reward_mean": pytest.approx(rewards.mean()),
            "reward_std": pytest.approx(rewards.std(ddof=1)),
            "distinct_outputs": len(set(valid)),
            "distinct_wrong_outputs": len(set(wrong)),
            "num_wrong_outputs": len(wrong),
        }
    ]


def test_a_completion_without_a_reward_says_neither_right_nor_wrong_of_its_group(tmp_path: Path) -> None:
    warehouse = run_with_missing_rewards(tmp_path / "run", 20, {*range(0, 160, 3), *range(8)})
    held: dict[str, list[bool]] = {}
    for row in warehouse.read("samples", iteration=0, purpose="train", scorer=SCORER).to_pylist():
        held.setdefault(row["task_id"], []).extend([row["correct"]] * (row["reward"] is not None))
    assert held["task-000"] == []
    for row in rows_of(connect(warehouse), "FROM groups"):
        right = held[row["task_id"]]
        assert (row["n"], row["c"]) == (len(right), sum(right))
        assert row["all_correct"] == (all(right) if right else None)
        assert row["none_correct"] == (not any(right) if right else None)


def test_outputs_are_counted_per_completion_whether_measured_or_not(tmp_path: Path) -> None:
    connection = connect(run_with_missing_rewards(tmp_path / "run", 1, set(range(7))))
    distinct = one(connection, "SELECT count(DISTINCT fingerprint) FROM samples")
    assert isinstance(distinct, int) and distinct > 1
    assert one(connection, "SELECT distinct_outputs_share FROM iteration_stats") == distinct / 8


def test_a_majority_is_of_completions_that_were_all_measured(tmp_path: Path) -> None:
    connection = connect(run_with_missing_rewards(tmp_path / "run", 3, {*range(8), 9}))
    found = rows_of(connection, "FROM maj_at_k(0, 4)")[0]
    assert (found["num_tasks"], found["num_blocks"]) == (2, 1)


def test_gains_of_training_and_of_evaluations_are_apart(tmp_path: Path) -> None:
    warehouse = empty_run(tmp_path / "run", num_tasks=2)
    for iteration in (0, 1):
        for place, purpose in enumerate(("train", "eval")):
            random = np.random.default_rng(2 * place + iteration)
            write_iteration(warehouse, iteration, purpose, Weather(), random, num_tasks=2, group_size=8,
                            parts=1)
    connection = connect(warehouse)
    for row in rows_of(connection, "FROM gains(0, 1)"):
        gain = one(connection, "SELECT avg(correct::INT) FILTER (iteration = 1) - avg(correct::INT) FILTER "
                               f"(iteration = 0) FROM samples WHERE purpose = '{row['purpose']}'")
        assert row["gain"] == pytest.approx(gain) and row["num_tasks"] == 2
    assert [row["purpose"] for row in rows_of(connection, "FROM gains(0, 1)")] == ["eval", "train"]


def test_gains_in_pass_at_k_are_those_of_the_tasks_that_have_k(tmp_path: Path) -> None:
    warehouse = empty_run(tmp_path / "run", num_tasks=3)
    for iteration in (0, 1):
        random = np.random.default_rng(iteration)
        write_iteration(warehouse, iteration, "eval", Weather(), random, num_tasks=3, group_size=8, parts=1)
    connection = connect(warehouse)

    def at(n: int, c: int) -> float:
        return 1 - comb(n - c, 4) / comb(n, 4)
    pairs = connection.sql("SELECT n_a, c_a, n_b, c_b FROM compare(0, 1)").fetchall()
    [row] = rows_of(connection, "FROM gains(0, 1, k := 4)")
    assert row["rate_a"] == pytest.approx(np.mean([at(n, c) for n, c, _, _ in pairs]))
    assert row["gain"] == pytest.approx(np.mean([at(*each[2:]) - at(*each[:2]) for each in pairs]))
    assert rows_of(connection, "FROM gains(0, 1, k := 9)") == []


def test_an_iteration_without_any_output_has_no_different_ones(tmp_path: Path) -> None:
    warehouse = empty_run(tmp_path / "run", num_tasks=2)
    write_iteration(warehouse, 0, "train", Weather(truncated=1.0), np.random.default_rng(0), num_tasks=2)
    connection = connect(warehouse)
    assert rows_of(connection, "SELECT distinct_outputs, distinct_wrong_outputs FROM groups") == 2 * [
        {"distinct_outputs": 0, "distinct_wrong_outputs": 0}]
    query = "SELECT distinct_outputs_share, distinct_wrong_share FROM iteration_stats"
    assert rows_of(connection, query) == [
        {"distinct_outputs_share": 0.0, "distinct_wrong_share": None}]


def test_outputs_that_cannot_be_compared_are_not_equal_ones(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE tested AS SELECT samples.* REPLACE (NULL::BOOLEAN AS first_output, "
        "NULL::VARCHAR AS fingerprint) FROM samples")
    assert rows_of(connection, "SELECT DISTINCT distinct_outputs_share, distinct_wrong_share "
                               "FROM stats_of('tested')") == [
        {"distinct_outputs_share": None, "distinct_wrong_share": None}]


def test_what_fails_is_counted_among_programs_that_could_be_run(
        connection: duckdb.DuckDBPyConnection) -> None:
    cases = [(False, "parsing", 0), (False, None, 10), (True, "runtime", 0), (True, None, 10),
             (True, None, 1), (True, "lane_lost", None), (True, "parsing", 0), (True, "timeout_cpu", 0)]
    connection.execute("CREATE OR REPLACE TEMP TABLE cases (place INT, closed BOOL, error TEXT, paid INT)")
    connection.executemany("INSERT INTO cases VALUES (?, ?, ?, ?)",
                           [(place, *case) for place, case in enumerate(cases)])
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE judged AS SELECT samples.* REPLACE (closed AS valid_code, error AS "
        "error_class, paid AS reward) FROM samples JOIN cases ON sample_index % 8 = place")
    assert rows_of(connection, "SELECT DISTINCT failed_share FROM stats_of('judged')") == [
        {"failed_share": 0.4}]


def test_one_completion(run: Warehouse, connection: duckdb.DuckDBPyConnection) -> None:
    stored = run.read("completions", iteration=1, purpose="train").to_pylist()
    wanted = next(row for row in stored if row["task_id"] == "task-002" and row["sample_index"] == 5)
    found = rows_of(connection, "FROM one_completion(1, 'task-002', 5)")
    assert len(found) == 1
    assert found[0]["completion_ids"] == wanted["completion_ids"]


def test_unfinished_stages_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=())
    for stage, table, keys in (("score", "samples", {"scorer": SCORER}), ("rollout", "prompts", {})):
        run = back_before(run, stage, complete=True, iteration=1, purpose="train", **keys)
        assert one(connect(run), f"SELECT max(iteration) FROM {table}") == 0
        assert one(connect(run, partial=True), f"SELECT max(iteration) FROM {table}") == 1


def test_no_other_scorer_takes_the_place_of_one_that_is_damaged_or_open_again(tmp_path: Path) -> None:
    warehouse = build_run(tmp_path / "run", iterations=2, evals=())
    score_again(warehouse, SCORER, "strict-99", 1)
    before = rows_of(connect(warehouse), "SELECT DISTINCT iteration, scorer FROM samples ORDER BY ALL")
    assert before == [{"iteration": each, "scorer": SCORER} for each in (0, 1)]
    part, *_ = warehouse.parts("samples", iteration=1, purpose="train", scorer=SCORER)
    part.chmod(0o644)
    part.write_bytes(b"torn")
    for _ in range(2):
        warehouse = open_warehouse(warehouse.root)
        left = rows_of(connect(warehouse), "SELECT DISTINCT iteration, scorer FROM samples ORDER BY ALL")
        assert left == before[:1]
        assert one(connect(warehouse), "SELECT count(*) FROM scorers WHERE iteration = 1 AND chosen") == 0
        fix(warehouse, check_run(warehouse).changes)
    assert any(f"with the options of {SCORER} in `warehouse log`" in problem
               for problem in check_run(open_warehouse(warehouse.root)).problems)


def test_the_chosen_scorer_is_named_trained_or_latest(tmp_path: Path) -> None:
    warehouse = build_run(tmp_path / "run", iterations=1, evals=(), trained=False)
    score_again(warehouse, SCORER, "strict-99", 0)

    def chosen() -> list[tuple[str, str]]:
        [shown] = [(choice.scorer, choice.reason) for choice in take_inventory(warehouse).choices
                   if choice.chosen]
        assert shown == warehouse.choose_scorer(0, "train", None)  # what train and explain go by
        assert warehouse.choose_scorer(0, "train", "strict")[0] == "strict-99"
        assert warehouse.choose_scorer(0, "train", SCORER)[0] == SCORER
        return [shown]

    assert chosen() == [("strict-99", "finished last")]
    with pytest.raises(Refusal) as refused:
        warehouse.choose_scorer(0, "train", "lax")
    assert refused.value.code == "other_scorers"
    with pytest.raises(StageError, match=r'strict-99\. Name the one .* `scorer = "NAME"` below .train. of '):
        scorer_to_train(warehouse, 0, None)
    begin(warehouse, "train", {"loss": "dapo"}, iteration=0).complete({"scorer": SCORER})
    assert chosen() == [(SCORER, "iteration 0 was trained on its rewards")]
    assert scorer_to_train(warehouse, 0, None) == SCORER
    (warehouse.root / "config.toml").write_text('[warehouse]\nscorer = "strict"\n')
    assert chosen() == [("strict-99", "named in config.toml")]
    connection = connect(warehouse)
    assert one(connection, "SELECT count(DISTINCT scorer) FROM all_samples") == 2
    assert one(connection, "SELECT any_value(scorer) FROM samples") == "strict-99"


def test_a_moved_run_answers_as_before(tmp_path: Path) -> None:
    # Brackets, quotes and partition-like names in the path must be taken as they are.
    before = build_run(tmp_path / "iteration=7" / "it's [my] run*", iterations=2, evals=())
    expected = rounded(connect(before), "SELECT * FROM iteration_stats ORDER BY iteration")
    text = (before.root / "warehouse.sql").read_text()
    after = tmp_path / "elsewhere" / "purpose=x" / "run"
    after.parent.mkdir(parents=True)
    shutil.move(before.root, after)
    moved = open_warehouse(after)
    assert rounded(connect(moved), "SELECT * FROM iteration_stats ORDER BY iteration") == expected
    assert (after / "warehouse.sql").read_text() != text


def test_the_kind_of_task_has_one_name_for_readers_and_its_old_one_in_the_file(run: Warehouse) -> None:
    part, = run.parts("tasks")
    assert "scorer" in pq.read_schema(part).names and "kind" not in pq.read_schema(part).names
    assert run.read("tasks", ["task_id", "kind"])["kind"].to_pylist() == ["grid"] * 8
    assert rows_of(connect(run), "SELECT DISTINCT kind FROM tasks") == [{"kind": "grid"}]


def test_the_written_sql_names_a_command_that_can_be_pasted(tmp_path: Path) -> None:
    sql = refresh_sql(empty_run(tmp_path / "it's a run"))
    [words] = (line.partition(" Use: ")[2] for line in sql.read_text().splitlines() if " Use: " in line)
    assert shlex.split(words) == ["duckdb", "-init", str(sql)]


def test_the_written_sql_stands_alone(run: Warehouse) -> None:
    text = refresh_sql(run).read_text()
    alone = duckdb.connect()
    directory = os.getcwd()
    os.chdir("/")  # absolute paths: nothing depends on where it is run
    try:
        alone.execute(text)
        assert one(alone, "SELECT count(*) FROM samples") == 6 * 8 * 16
    finally:
        os.chdir(directory)


def test_a_read_only_run_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warehouse.sql import script
    warehouse = build_run(tmp_path / "run", iterations=1, evals=())

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(script, "replace_bytes", refuse)
    assert one(connect(warehouse), "SELECT count(*) FROM samples") == 128


def test_an_empty_run_has_every_view_and_no_row(tmp_path: Path) -> None:
    connection = connect(empty_run(tmp_path / "run"))
    views = [name for name, in connection.execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()]
    assert len(views) >= 25
    filled = {"tasks", "policies", "policy_documents"}
    assert {name for name in views if one(connection, f"SELECT count(*) FROM {name}")} == filled


def test_views_have_the_same_types_empty_and_filled(run: Warehouse, tmp_path: Path) -> None:
    query = ("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
             "ORDER BY table_name, column_index")
    empty = connect(empty_run(tmp_path / "empty")).execute(query).fetchall()
    assert connect(run).execute(query).fetchall() == empty


def test_every_view_and_column_is_explained() -> None:
    meanings = tomllib.loads(files("warehouse.sql.texts").joinpath("meanings.toml").read_text())
    described = described_columns()  # KeyError for a column without a meaning
    views = empty_connection().execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    assert meanings["views"].keys() == {view for view, in views} == described.keys()
    explained = {(column, meaning) for columns in described.values() for column, _kind, meaning in columns}
    assert all(meaning for _column, meaning in explained)
    assert set(meanings["columns"].items()) <= explained, "a meaning that no column has"


ONE_ITERATION = ["samples", "completions", "groups", "task_results", "pass_curve", "errors",
                 "iteration_stats", "costs"]


@pytest.mark.parametrize("view", ONE_ITERATION)
def test_one_iteration_opens_no_file_of_another(connection: duckdb.DuckDBPyConnection, view: str) -> None:
    scans = scanned_files(connection, f"SELECT * FROM {view} WHERE iteration = 2 AND purpose = 'train'")
    assert scans and all("iteration=2/" in path for path in scans), scans


def test_one_completion_opens_one_iteration(connection: duckdb.DuckDBPyConnection) -> None:
    query = "FROM one_completion(2, 'task-001', 3)"
    scans = [path for path in scanned_files(connection, query) if "/train/iteration" not in path]
    assert scans and all("iteration=2/" in path for path in scans), scans


@pytest.mark.parametrize("call", ["token_gaps(2)", "maj_at_k(2, 4)", "pass_bands(2, 2)"])
def test_deeper_tools_open_one_iteration(connection: duckdb.DuckDBPyConnection, call: str) -> None:
    scans = scanned_files(connection, f"FROM {call}")
    assert scans and all("iteration=2/" in path for path in scans), scans


def test_a_window_over_one_iteration_opens_no_other(connection: duckdb.DuckDBPyConnection) -> None:
    scans = scanned_files(connection, "SELECT sample_index, avg(reward) OVER (PARTITION BY task_id) "
                                      "FROM samples "
                                      "WHERE iteration = 2 AND purpose = 'train'")
    assert scans and all("iteration=2/" in path for path in scans), scans


def test_daily_views_never_read_lists(connection: duckdb.DuckDBPyConnection) -> None:
    for view in [*ONE_ITERATION, "task_history", "mismatch"]:
        plan = (
            str(connection.execute(f"EXPLAIN SELECT * FROM {view}").fetchall())
            if view != "completions"
            else ""
        )
        for name in ("completion_ids", "behaviour_logprobs", "old_logprobs", "prompt_ids"):
            assert name not in plan, (view, name)


def rounded(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict]:
    """Rows with floats to nine digits: sums over several threads end in any order."""
    return [
        {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in rows_of(connection, query)
    ]


def scanned_files(connection: duckdb.DuckDBPyConnection, query: str) -> list[str]:
    """Parquet files that a query opens, from its executed plan."""
    plan = json.loads(connection.execute(f"EXPLAIN (ANALYZE, FORMAT json) {query}").fetchall()[0][1])
    found: list[str] = []

    def walk(node: dict) -> None:
        extra = node.get("extra_info", {})
        names = [name for name in extra.get("Filename(s)", "").split(", ") if name]
        found.extend(names)
        # The plan cuts long lists of names off; the number it gives is whole.
        if extra.get("Function") == "READ_PARQUET":
            found.extend(["unnamed.parquet"] * (int(extra.get("Total Files Read", 0)) - len(names)))
        for child in node.get("children", []):
            walk(child)

    for operator in plan["operator"]:
        walk(operator)
    return [path for path in found if path.endswith(".parquet")]


def test_a_run_whose_path_has_a_line_break_is_asked_like_any_other(tmp_path: Path) -> None:
    run = build_run(tmp_path / "a\nSELEC b" / "run", iterations=1, evals=(), num_tasks=2, group_size=2)
    assert rows_of(connect(run), "SELECT count(*) AS n FROM samples") == [{"n": 4}]


def test_thoughts_are_read_apart_from_the_answer_that_is_scored(tmp_path: Path) -> None:
    run = empty_run(tmp_path / "run")
    texts = [f"{start} so\n2{end}\n\nan answer" for start, end in THOUGHTS.values()] + [
        "so 2</think>done", "<think></think>x </think> y", "<|channel|>final<|message|>y", "<think>cut off",
        "x</think> <think>cut off", "plain, not <think>", "It is so.\n\n<think>cut off",
        "a</think>b\n<think>c"]
    add_rollout(run, [("a", text) for text in texts])
    with connect(run) as connection:
        found = connection.execute("SELECT thoughts, answer FROM answers ORDER BY sample_index").fetchall()
    assert found == [("so\n2", "an answer")] * len(THOUGHTS) + [
        ("so 2", "done"), ("</think>x", "y"), ("", "y"), ("cut off", ""), ("x", ""),
        (None, "plain, not <think>"), ("cut off", "It is so."), ("a", "b")]
    assert [answer for _, answer in found] == [behind_thoughts(text).strip() for text in texts]
