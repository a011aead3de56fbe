"""What a run cost, per stage and per point of pass@1."""

import html
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reports.build import build_report
from tests.building.weather import build_run
from warehouse.cli import cli
from warehouse.inspect.story import Change, _point_line, cost_lines, dollars
from warehouse.sql.database import connect
from warehouse.store.run_folder import Warehouse


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    return build_run(tmp_path / "run", iterations=3, evals=(0, 2), num_tasks=4, group_size=4)


def summary(run: Warehouse) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["summary", str(run.root)])
    return result.exit_code, result.output


def with_price(run: Warehouse, price: str) -> None:
    (run.root / "config.toml").write_text(f"[warehouse]\nprice-per-hour = {price}\n")


def test_seconds_cost_what_config_toml_says(run: Warehouse) -> None:
    connection = connect(run)
    assert cost_lines(run, connection) == [] and "Cost at" not in summary(run)[1]
    with_price(run, "36")                       # a cent per second
    seconds = dict(connection.execute("SELECT stage, sum(seconds) FROM stages GROUP BY stage").fetchall())
    first, second = cost_lines(run, connection)
    parts = ", ".join(f"{stage} {dollars(seconds[stage] / 100)}" for stage in ("rollout", "score", "train"))
    assert first == f"Cost at $36.00 an hour: {dollars(sum(seconds.values()) / 100)} ({parts})."
    assert "'eval'" in second


def test_summary_and_report_say_it(run: Warehouse) -> None:
    with_price(run, "36")
    lines = cost_lines(run, connect(run))
    code, text = summary(run)
    assert code == 0 and "\n".join(lines) in text
    page = html.unescape(build_report(run.root).read_text())
    assert all(f"<p>{line}</p>" in page for line in lines)


def test_without_evaluations_training_says_what_was_gained(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=(), num_tasks=4, group_size=4)
    with_price(run, "1")
    assert "the training tasks" in cost_lines(run, connect(run))[1]


def test_a_point_is_a_hundredth_and_must_be_beyond_chance() -> None:
    assert _point_line(10, "eval", Change(0.25, 0.5, 0.25, 0.1)).startswith(
        "$0.40 per point of pass@1 gained on 'eval': .25 → .50")
    for gain, margin in ((0.05, 0.1), (-0.25, 0.1), (0.25, None)):
        line = _point_line(10, "train", Change(0.25, 0.25 + gain, gain, margin))
        assert line.startswith("No gain beyond chance on the training tasks for it: pass@1 ")
    assert (dollars(1234.5), dollars(0.01234), dollars(0)) == ("$1,234.50", "$0.012", "$0.00")


@pytest.mark.parametrize("price", ["-1", "true", "\"2.5\"", "inf"])
def test_a_price_that_is_none_is_one_sentence(run: Warehouse, price: str) -> None:
    with_price(run, price)
    code, text = summary(run)
    assert code == 1 and re.search(r"line 2: \[warehouse\] price-per-hour = .* is not a price", text)
