"""`reports build`: one safe file from whatever a run holds."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from reports import build, scale
from reports.build import build_report
from reports.cli import cli
from reports.drawing import Series, line_chart
from reports.figures_health import ERRORS_SQL, draw_errors
from reports.scale import NO_VALUE
from tests.building.runs import back_before
from tests.building.weather import SCORER, Weather, build_run, empty_run, write_iteration
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect, empty_connection, rows_of
from warehouse.sql.script import HIDDEN
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

FIGURES = [*build.FIGURES]


class Page(html.parser.HTMLParser):
    """What a page holds: tags with their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(tmp_path_factory.mktemp("runs") / "run", iterations=4, evals=(0, 3))


@pytest.fixture(scope="module")
def page(run: Warehouse) -> str:
    return build_report(run.root).read_text()


def test_every_figure_is_drawn(page: str) -> None:
    drawn = set(FIGURES) - {"alarms"}
    for name in drawn:
        block = re.search(f'<figure data-figure="{name}".*?</figure>', page, re.DOTALL)
        assert block and '<svg class="chart"' in block[0], name
    island = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert island and set(json.loads(island[1])["figures"]) == drawn


def test_the_schema_has_every_macro_that_the_sql_of_a_figure_calls() -> None:
    called = {name for figure in build.FIGURES.values() for name in re.findall(r"\b(\w+)\(", figure.sql)}
    assert "pass_bands" in called and not called.intersection(HIDDEN)


def test_alarms_stand_at_the_top(page: str, tmp_path: Path) -> None:
    assert "<b>No alarm.</b>" in page and "Checked: iteration 0 to 3, 10 to 25 signals each." in page
    run = build_run(tmp_path / "run", shape="wrong-adapter", iterations=6, evals=(), num_tasks=4,
                    group_size=8)
    text = build_report(run.root).read_text()
    assert "<b>1 alarm since iteration 5</b>" in text and "wrong_weights since iteration 5" in text
    assert len(re.findall(r"5/task-\d+/\d", text)) >= 3
    assert f"<p>Stop here, or go back: warehouse rollback {run.root} --to 5</p>" in text


def test_alarms_from_before_a_rollback_are_not_counted(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="blow-up", iterations=8, evals=(), num_tasks=4, group_size=8)
    roll_back(run, 4)
    text = build_report(run.root).read_text()
    assert "<b>No alarm since the last rollback.</b>" in text and "alarms since" not in text
    assert '<div class="notice once">' in text and "<p>Went back to policy 4</p>" in text
    assert "No training iteration from 8 on is scored." in text


def tile_of(text: str, name: str) -> str:
    found = re.search(rf'<div class="tile"><b>([^<]*)</b><span>{re.escape(name)}</span>', text)
    assert found, re.findall(r"<span>([^<]*)</span></div>", text)
    return found[1]


def test_what_fired_and_where_the_run_went_back_or_scorers_changed_is_marked(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="blow-up", iterations=8, evals=(), num_tasks=4, group_size=8)
    first = min(row[0] for row in connect(run).execute("SELECT iteration FROM fired_signals").fetchall())
    roll_back(run, 3)
    for iteration, truncated, scorer in ((8, 0.02, SCORER), (9, 0.95, SCORER), (10, 0.95, "other-1")):
        write_iteration(run, iteration, "train", Weather(truncated=truncated),
                        np.random.default_rng(iteration), scorer=scorer)
    text = build_report(run.root).read_text()
    for name in ("passes", "reward", "shares", "gradients", "tasks"):
        block = re.search(f'<figure data-figure="{name}".*?</figure>', text, re.DOTALL)
        assert block and f"fired at iteration {first}: " in block[0], name
        assert re.search("fired at iteration 9: [^<']*truncation", block[0]) or name == "gradients", name
        assert "policy 8 is policy 3 again" in block[0] or name == "gradients", name    # 8 is not trained
        assert f"rewards are those of other-1, before of {SCORER}" in block[0] or name == "gradients", name


def test_failures_of_a_long_run_count_the_iterations_without_any() -> None:
    """Every fourth iteration has a fifth of its completions fail: a twentieth in the mean over all."""
    connection = empty_connection()
    connection.execute("CREATE OR REPLACE VIEW iteration_stats AS SELECT range::INTEGER AS iteration, "
                       "'train' AS purpose FROM range(480)")
    for every, shares in ((4, ["0.05"] * 120), (1000, ["0.05", *["0"] * 119])):
        connection.execute("CREATE OR REPLACE VIEW errors AS SELECT *, 'runtime' AS error_class, "
                           f"0.2::DOUBLE AS share FROM iteration_stats WHERE iteration % {every} = 0")
        [hover] = draw_errors(rows_of(connection, ERRORS_SQL)).hover["series"]
        assert (hover["name"], hover["values"]) == ("runtime", shares)
    connection.execute("CREATE OR REPLACE VIEW errors AS SELECT 0 AS iteration, 'train' AS purpose, "
                       "'runtime' AS error_class, 0.2::DOUBLE AS share WHERE false")
    assert rows_of(connection, ERRORS_SQL) == []


def test_evaluations_are_told_with_their_policies(page: str, tmp_path: Path) -> None:
    assert " → " in tile_of(page, "pass@1, eval, policy 0 to policy 3")
    assert " → " in tile_of(page, "training pass@1")
    run = build_run(tmp_path / "run", iterations=3, evals=(1,), num_tasks=4, group_size=8)
    sky = Weather(solve=0.9)
    write_iteration(run, 2, "eval-wide", sky, np.random.default_rng(0), num_tasks=4, group_size=8)
    text = build_report(run.root).read_text()
    shares = dict(connect(run).execute(
        "SELECT purpose, pass_at_1 FROM iteration_stats WHERE purpose <> 'train'").fetchall())
    assert tile_of(text, "pass@1, eval, policy 1") == f"{shares['eval']:.2f}"
    assert tile_of(text, "pass@1, eval-wide, policy 2") == f"{shares['eval-wide']:.2f}"
    answers = {"iteration": 0, "purpose": "distil", "policy_version": None, "num_completions": 8,
               "pass_at_1": 0.5}
    assert build.headline(connect(run), [answers])[-1] == ("pass@1, distil, another model", "0.50")


def test_evaluations_of_policies_that_a_rollback_left_are_not_at_the_top(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=(0, 2, 3), num_tasks=4, group_size=8)
    roll_back(run, 2, "for the test")
    text = build_report(run.root).read_text()
    assert tile_of(text, "pass@1, eval, policy 0 to policy 2")
    assert text.count(", given up") == 2 == text.count("<td>3, given up</td>")     # training and evaluation


def test_completions_and_tokens_at_the_top_are_of_the_same_rollouts(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=3, evals=(1,), num_tasks=4, group_size=8)
    run = back_before(run, "score", iteration=2, purpose="train", scorer=SCORER)
    connection = connect(run)
    [tokens] = connection.execute("SELECT sum(num_completion_tokens) FROM completions").fetchone() or [0]
    assert ("completions", "128") in build.headline(connection, [])
    assert ("tokens sampled", str(tokens)) in build.headline(connection, [])


def test_nothing_is_requested_and_only_our_script_may_run(page: str) -> None:
    parsed = Page(page)
    policy = next(attributes["content"] for tag, attributes in parsed.tags
                  if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag, attributes in parsed.tags:
        assert not {"src", "style", "srcset", "action"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        if attributes.get("href"):
            assert attributes["href"].startswith("#")
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
    assert sum(tag == "script" for tag, _ in parsed.tags) == 2


def test_in_a_run_that_is_only_read_the_report_needs_another_place(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = empty_run(tmp_path).root
    monkeypatch.setattr(build.os, "access", lambda path, _mode: Path(path) != run)
    with pytest.raises(StageError, match="Name another file with --output"):
        build_report(run)
    assert build_report(run, tmp_path / "mine.html").is_file() and not (run / "report.html").exists()


def test_an_empty_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    text = build_report(empty_run(tmp_path / "run").root).read_text()
    assert "No training iteration is scored yet." in text and "<svg class=\"chart\"" not in text


def test_a_run_of_evaluations_alone_is_not_told_that_nothing_failed_or_is_scored(tmp_path: Path) -> None:
    run = empty_run(tmp_path / "run")
    write_iteration(run, 0, "eval", Weather(invalid=0.5), np.random.default_rng(0))
    text = build_report(run.root).read_text()
    assert "No completion of a training iteration failed." in text
    assert "Nothing is scored" not in text and "No completion failed" not in text


def test_a_run_that_is_not_trained_lacks_only_the_training(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=(), trained=False)
    text = build_report(run.root, tmp_path / "page.html").read_text()
    assert "Nothing is trained yet." in text and 'data-figure="passes"' in text
    assert text.count('<svg class="chart"') >= 10


def test_the_command_writes_into_the_run_or_elsewhere(run: Warehouse, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["build", str(run.root), "-o", str(tmp_path / "deep" / "page.html")])
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r".*/deep/page\.html \(0\.\d\d MB\)\n", result.stdout)
    nowhere = CliRunner().invoke(cli, ["build", str(tmp_path)])
    assert nowhere.exit_code == 1 and "is not a run folder" in nowhere.stderr
    for name in ("b c", "a"):
        (tmp_path / "arms" / name).mkdir(parents=True)
        (tmp_path / "arms" / name / "warehouse.json").write_text("{}")
    assert (f"It holds the runs a, b c. Name one: {tmp_path}/arms/a\n"
            in CliRunner().invoke(cli, ["build", f"{tmp_path}/arms/"]).stderr)


def test_ctrl_c_amid_a_query_ends_without_a_traceback(run: Warehouse, monkeypatch: Any) -> None:
    class Interrupted:
        def execute(self, *_query: Any) -> None:
            raise RuntimeError("Query interrupted")

    monkeypatch.setattr(build, "connect", lambda *_, **__: Interrupted())
    result = CliRunner().invoke(cli, ["build", str(run.root)])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "\nAborted!\n")


def test_a_page_stays_small(page: str) -> None:
    assert len(page.encode()) < 500_000


def test_the_label_of_a_level_at_the_top_of_a_chart_is_inside_of_it() -> None:
    svg = line_chart([0, 1], [Series("a", [0.1, 0.5])], levels=[(1.0, "alarm")], share=True).svg
    [height] = re.findall(r'y="([\d.]+)"[^>]*>alarm<', svg)
    assert float(height) > 12


def test_numbers_stay_numbers_where_three_digits_round_up() -> None:
    shown = {999.4: "999", 999.6: "1000", 9999.4: "9999", 9999.6: "10k", 999_960: "1M", -999_960_000: "-1G"}
    assert {value: scale.number(value) for value in shown} == shown


def test_numbers_of_a_column_have_the_same_digits() -> None:
    row = {"iteration": 0, "purpose": "train", "policy_version": 0, "num_tasks": 2, "num_completions": 8,
           "pass_at_1": 0.5, "pass_at_max_k": 1.0, "max_k": 4, "reward_mean": None, "truncated_share": 0.0,
           "tokens_mean": 13.0, "zero_variance_share": 0.25, "mismatch_kl_fresh": 3.2e-13}
    cells = re.findall(r"<td>(.*?)</td>", build.stats_table([row]))
    assert cells[5:] == ["0.500", "1.000", "4", NO_VALUE, "0.000", "13.0", "0.250", "3.2e-13"]


@pytest.mark.parametrize(("model", "shown"), [("/models/starter/model", "starter/model"), ("Qwen/Qwen3-0.6B",
                                              "Qwen/Qwen3-0.6B"), ("base", "base")])
def test_a_run_names_its_base_so_that_it_is_known(model: str, shown: str, tmp_path: Path) -> None:
    assert Warehouse(tmp_path, {"model": model}).base_name == shown
