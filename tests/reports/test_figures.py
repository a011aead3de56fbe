"""What a picture says where some of its rows are missing, where they are many, and where they were pruned."""

import re
from typing import Any

import pytest

from reports.drawing import WIDTH, Chart, Series, line_chart
from reports.export import standalone
from reports.figure import Figure, bars, cells, lines
from reports.figures_health import draw_errors
from reports.figures_learning import draw_passes
from reports.figures_training import draw_timeline
from reports.page import figure_block
from reports.scale import number


def block_of(chart: Chart) -> str:
    return figure_block(Figure("name", "Title", "", "", lambda _rows: chart), chart)


def entries(chart: Chart) -> list[tuple[str, str]]:
    return re.findall(r'<i class="([^"]*)"></i>([^<]*)', block_of(chart))


def labels(chart: Chart) -> list[int]:
    return [int(text) for text in re.findall(r">(\d+)</text>", chart.svg)]


def test_what_is_drawn_alone_keeps_its_colour_and_says_what_it_is() -> None:
    rows: list[dict[str, Any]] = [{"iteration": x, "0": None, "1": 0.5} for x in range(3)]
    for draw in (lines, bars):
        chart = draw(**{"0": "first run", "1": "second run"})(rows)
        assert entries(chart) == [("b2", "second run")] and "t1" not in chart.svg
    assert entries(lines(**{"1": "what the title says"})(rows)) == []
    failed = draw_errors([{"iteration": 0, "error_class": "timeout", "share": 0.2}])
    assert entries(failed) == [("b1", "timeout")]
    reached = {"iteration": 0, "purpose": "train", "k": 16, "pass_at_k": 0.5, "low": 0.4, "high": 0.6}
    passes = draw_passes([reached])
    assert entries(passes) == [("b1", "pass@16, training")]


def test_stages_that_overlap_lie_above_each_other_with_the_share_of_the_time_that_they_work() -> None:
    spans = [("rollout", 100.0, 2.0), ("rollout", 103.0, 1.0), ("score", 101.0, 3.0)]
    chart = draw_timeline([{"stage": stage, "iteration": number, "start": start, "busy": busy}
                           for number, (stage, start, busy) in enumerate(spans)])
    bars_drawn = [tuple(map(float, each)) for each in re.findall(r' x="([\d.]+)" y="[\d.]+" width="([\d.]+)"',
                                                                chart.svg)]
    (first, wide), (again, _), (score, long) = bars_drawn
    assert (again - first) / (score - first) == pytest.approx(3, abs=0.05)
    assert long / wide == pytest.approx(1.5, abs=0.02)
    assert ">75%<" in chart.svg and ">4 s in all<" in chart.svg


@pytest.mark.parametrize("number", [40, 41, 300])
def test_a_value_between_gaps_is_seen_in_a_long_run_too(number: int) -> None:
    values: list[float | None] = [None] * number
    values[20], values[-1] = 0.5, 0.25
    svg = line_chart(range(number), [Series("a", values)]).svg
    assert svg.count('<circle class="dot t1"') == 2


@pytest.mark.parametrize("number", [130, 365, 450, 777, 1000])
def test_iterations_are_numbered_however_many_there_are(number: int) -> None:
    rows = [{"iteration": x, "task": "a", "rate": 0.5, "share": 0.5} for x in range(number)]
    heat = cells("task", "rate")(rows)
    for shown in (labels(heat), labels(bars(share="share")(rows))):
        assert len(shown) > 3 and shown == sorted(shown)
    places = dict(zip(heat.hover["x"], heat.hover["px"], strict=True))
    for x, text in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">(\d+)</text>', heat.svg):
        assert float(x) == places[max(first for first in places if first <= int(text))]


def test_a_long_legend_stays_inside_of_the_picture() -> None:
    names = [f"pass@1, eval-benchmark-{number}" for number in range(6)]
    chart = line_chart([0, 1], [Series(name, [0.5, 0.5]) for name in names], share=True)
    svg = standalone(Figure("passes", "Title", "", "", lambda _rows: chart), chart)
    texts = re.findall(r'<text x="([\d.]+)" y="(\d+)"[^>]*>([^<]*)', svg)
    placed = [(float(x), float(y)) for x, y, text in texts if text in names]
    assert len(placed) == 6 and all(x + 6.2 * len(names[0]) < WIDTH for x, _ in placed)
    assert float(re.findall(r"translate\(0 (\d+)\)", svg)[0]) > max(y for _, y in placed)


def test_what_rounding_left_of_zero_is_zero() -> None:
    assert [number(value) for value in (-0.0, 1.7e-18, 4.4e-13)] == ["0", "0", "4.4e-13"]
