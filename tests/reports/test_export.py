"""Single figures and comparisons outside the page."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reports.build import FIGURES
from reports.cli import cli
from reports.compare import paired_gains
from reports.figure import cells
from reports.grids import COLORS, cell_paths, difference_marks
from tests.building.weather import SCORER, Weather, build_run, write_iteration
from warehouse.experiments.comparison import paired_interval
from warehouse.inspect.show import is_grid
from warehouse.sql.database import connect
from warehouse.sql.many import connect_runs, run_names
from warehouse.store.run_folder import Warehouse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(
        tmp_path_factory.mktemp("runs") / "run", iterations=3, evals=(0,), num_tasks=4, group_size=8
    )


def reports(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_every_figure_stands_alone(run: Warehouse, tmp_path: Path) -> None:
    assert [line.split()[0] for line in reports("figure", run.root).stdout.splitlines()] == [*FIGURES]
    for name in ("passes", "groups", "tasks", "mismatch"):
        file = tmp_path / f"{name}.svg"
        assert reports("figure", run.root, name, "-o", file).exit_code == 0
        drawn = ElementTree.parse(file).getroot()
        style = next(node.text for node in drawn.iter() if node.tag.endswith("style"))
        assert style and "var(" not in style  # viewers of SVG know no variables
        used = {each for node in drawn.iter() for each in node.get("class", "").split()}
        assert used <= set(re.findall(r"\.([a-z]\w*)", style))


def test_figures_without_rows_or_name_say_so(run: Warehouse, tmp_path: Path) -> None:
    unknown = reports("figure", run.root, "nothing", "-o", tmp_path / "x.svg")
    assert unknown.exit_code == 1 and "There is no figure 'nothing'" in unknown.stderr
    single = build_run(tmp_path / "run", iterations=1, evals=(), num_tasks=2, group_size=4)
    quiet = reports("figure", single.root, "alarms", "-o", tmp_path / "x.svg")
    assert quiet.exit_code == 1 and "No signal was raised" in quiet.stderr
    format_ = reports("figure", run.root, "passes", "-o", tmp_path / "x.pdf")
    assert format_.exit_code == 1 and "ends in .svg" in format_.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_heat_map_leaves_no_iteration_out() -> None:
    rows = [{"iteration": iteration, "task": "a", "rate": 0.5} for iteration in (3, 4, 7)]
    drawn, whole = (cells("task", "rate")(each).svg for each in (rows, [
        *rows, *({"iteration": iteration, "task": "b", "rate": 0.5} for iteration in range(3, 8))]))
    labels = [re.findall(r">(\d+)</text>", svg) for svg in (drawn, whole)]
    assert labels[0] == labels[1] and "5" in labels[0]


def test_cells_become_runs_of_their_colour() -> None:
    paths = cell_paths([[1, 1, 0], [2, 1, 1]])
    assert f'<path fill="{COLORS[1]}" d="M0 0h2v1h-2zM1 1h2v1h-2z"/>' in paths
    assert f'<path fill="{COLORS[2]}" d="M0 1h1v1h-1z"/>' in paths
    assert difference_marks([[1, 2]], [[1, 2]]) == "" and difference_marks([[1, 2]], [[1], [2]]) == ""
    assert difference_marks([[1, 2]], [[1, 3]]).count("M1.3 0.3") == 2


@pytest.mark.parametrize(
    "value", [None, [], [[]], [[1], [1, 2]], [[10]], [[-1]], ["12"], [[1.5]], [[0] * 99]]
)
def test_what_is_no_grid_is_not_drawn(value: object) -> None:
    assert not is_grid(value)


def test_the_interval_of_gains_in_pairs(run: Warehouse) -> None:
    assert paired_interval(connect(run), [0.1] * 20) == pytest.approx((0.1, 0.1))
    assert paired_interval(connect(run), [-0.5, 0.5] * 50) == pytest.approx((-0.1, 0.1), abs=0.03)
    assert paired_interval(connect(run), [0.5]) is None           # one task says nothing of others


def gains_of(*runs: Warehouse) -> list[dict[str, Any]]:
    return paired_gains(connect_runs(runs), *run_names([run.root for run in runs]))


def right(run: Warehouse, task: str, iteration: int, purpose: str) -> float:
    rows = run.read("samples", iteration=iteration, purpose=purpose, scorer=SCORER).to_pylist()
    return float(np.mean([row["correct"] for row in rows if row["task_id"] == task]))


def test_only_rows_of_one_iteration_and_purpose_are_paired(tmp_path: Path) -> None:
    first = build_run(tmp_path / "first", iterations=3, evals=(0, 2), num_tasks=4, group_size=8)
    second = build_run(tmp_path / "second", iterations=4, evals=(0,), num_tasks=4, group_size=8, seed=9)
    random = np.random.default_rng(3)
    write_iteration(first, 1, "eval-wide", Weather(), random, num_tasks=4, group_size=8)
    write_iteration(second, 2, "eval-wide", Weather(), random, num_tasks=4, group_size=8)
    gains = gains_of(first, second)
    assert [(row["iteration"], row["purpose"], row["num_tasks"]) for row in gains] == [
        (2, "train", 4), (0, "eval", 4)]
    for row in gains:
        for run, rate in ((first, row["rate_a"]), (second, row["rate_b"])):
            shares = [right(run, f"task-00{number}", row["iteration"], row["purpose"]) for number in range(4)]
            assert rate == pytest.approx(np.mean(shares))


def test_an_evaluation_that_is_not_old_comes_first(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / str(seed), iterations=2, evals=(1,), num_tasks=2, group_size=4, seed=seed)
            for seed in (1, 2)]
    assert [(row["purpose"], row["iteration"]) for row in gains_of(*runs)] == [("eval", 1), ("train", 1)]


def test_every_evaluation_of_two_runs_has_a_row(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / name, iterations=1, evals=(), num_tasks=2, group_size=4) for name in "ab"]
    for run in runs:
        for purpose in ("eval-easy", "eval-hard"):
            write_iteration(run, 0, purpose, Weather(), np.random.default_rng(1), num_tasks=2, group_size=4)
    assert reports("compare", *(run.root for run in runs), "-o", tmp_path / "page.html").exit_code == 0
    rows = re.findall(r"<td>b</td><td>(.*?)</td><td>0</td>", (tmp_path / "page.html").read_text())
    assert rows == ["eval-easy", "eval-hard", "training"]


def test_more_than_two_runs_are_compared_each_with_the_first(run: Warehouse, tmp_path: Path) -> None:
    others = [build_run(tmp_path / name, iterations=2, evals=(), num_tasks=3, group_size=8) for name in "bc"]
    paths = [run.root, *(other.root for other in others)]
    assert reports("compare", *paths, "-o", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text()
    legend = re.search(r'data-figure="pass-at-1".*?<ul class="legend">(.*?)</ul>', text, re.DOTALL)
    assert legend and re.findall(r"</i>(.*?)</li>", legend[1]) == ["run", "b", "c"]
    assert re.findall(r"<td>(\w+)</td><td>training</td>", text) == ["b", "c"]
    result = reports("compare", *paths * 3, "-o", tmp_path / "page.html")
    assert result.exit_code == 1 and "Compare at most 6" in result.stderr
    result = reports("compare", paths[0], paths[0], "-o", tmp_path / "page.html")
    assert result.exit_code == 1 and "is given twice" in result.stderr


def test_runs_of_other_group_sizes_are_compared_at_one_k(run: Warehouse, tmp_path: Path) -> None:
    other = build_run(tmp_path / "small", iterations=2, evals=(), num_tasks=3, group_size=4)
    reports("compare", run.root, other.root, "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    figure = re.search(r'<figure data-figure="pass-at-k".*?</figure>', text, re.DOTALL)
    assert figure and "pass@4" in figure[0] and "k = 4" in figure[0]
    evaluated = build_run(tmp_path / "evaluated", iterations=0, num_tasks=3)
    for each in (other, evaluated):     # one that was never trained leaves the others their k
        write_iteration(each, 0, "eval-wide", Weather(), np.random.default_rng(0), num_tasks=3, group_size=4)
    assert reports("compare", other.root, evaluated.root, "-o", tmp_path / "page.html").exit_code == 0
    assert "pass@4" in (tmp_path / "page.html").read_text()


def test_comparing_needs_common_tasks(run: Warehouse, tmp_path: Path) -> None:
    from tests.building.weather import empty_run
    result = reports("compare", run.root, empty_run(tmp_path / "empty").root, "-o", tmp_path / "page.html")
    assert result.exit_code == 1 and "no scored task in common" in result.stderr
    assert not (tmp_path / "page.html").exists()
