"""Reports in a real headless browser: drawn, interactive, silent, and deaf to foreign scripts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.build import build_report
from reports.compare import compare_runs
from tests.browser import MISSING, Browser, is_there
from tests.building.weather import build_run
from tests.reports.test_build import FIGURES

pytestmark = pytest.mark.skipif(not is_there(), reason=MISSING)

PLACE = ("const box = document.querySelector(`#${arguments[0]} svg.chart`); "
         "box.scrollIntoView({block: 'center'});"
         "const at = box.getBoundingClientRect(); return [at.x, at.y, at.width, at.height]")
READOUT = "const out = document.getElementById('readout'); return out.hidden ? '' : out.innerText"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = build_run(tmp_path_factory.mktemp("runs") / "run", shape="blow-up", iterations=8, evals=(0, 7))
    return build_report(run.root)


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    with Browser() as window:
        window.open(page)
        yield window


def test_every_figure_has_marks_inside_its_frame(browser: Browser) -> None:
    marks = browser.script(
        "return Object.fromEntries([...document.querySelectorAll('figure')].map((figure) => {"
        " const frame = figure.querySelector('svg.chart').getBoundingClientRect();"
        " const found = [...figure.querySelectorAll('.line, .bar, .heat, .dot, .alarm')];"
        " const inside = found.filter((mark) => { const box = mark.getBoundingClientRect();"
        "   return box.width + box.height > 0 && box.left >= frame.left - 3 && box.right <= frame.right + 3"
        "     && box.top >= frame.top - 3 && box.bottom <= frame.bottom + 3; });"
        " return [figure.id, [found.length, inside.length]]; }))")
    assert set(marks) == set(FIGURES)
    for name, (found, inside) in marks.items():
        assert found == inside > 0, name


def test_hover_reads_the_values_and_marks_all_charts(browser: Browser) -> None:
    x, y, width, height = browser.script(PLACE, "shares")
    browser.move_to(x + width * 0.97, y + height / 2)
    readout = browser.script(READOUT)
    assert readout.startswith("iteration") and "truncated" in readout and "7" in readout.split("truncated")[0]
    cursors = browser.script("return [...document.querySelectorAll('.cursor')].filter((one) => "
                             "one.getAttribute('d')).length")
    assert cursors > 10
    x, y, width, height = browser.script(PLACE, "tasks")
    browser.move_to(x + width * 0.5, y + height * 0.4)
    assert "task-" in browser.script(READOUT)
    browser.move_to(2, 2)
    assert browser.script(READOUT) == ""


def test_light_and_dark(browser: Browser, page: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.script(ground)
    browser.script("document.getElementById('theme').click()")
    dark = browser.script(ground)
    browser.script("document.getElementById('theme').click()")
    assert browser.script(ground) == light != dark
    with Browser(dark=True) as other:
        other.open(page)
        assert other.script(ground) == dark
        assert other.errors() == []


def test_the_tiles_fill_their_row_and_hold_their_labels(browser: Browser) -> None:
    free, lines = browser.script("""
        const row = document.querySelector('.tiles'), tiles = [...row.children];
        const label = tiles.find(tile => tile.textContent.includes('training pass@1')).lastChild;
        return [row.getBoundingClientRect().right - tiles.at(-1).getBoundingClientRect().right,
                label.getClientRects().length]""")
    assert abs(free) < 1 and lines == 1


def test_a_narrow_window_does_not_scroll_sideways(page: Path) -> None:
    with Browser(width=500, height=900) as phone:
        phone.open(page)
        assert phone.script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_the_console_stays_silent(browser: Browser) -> None:
    assert browser.errors() == []


def test_a_script_that_slipped_in_does_not_run(page: Path, tmp_path: Path) -> None:
    """The policy allows our own script alone."""
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("<main>", "<main><script>window.owned = 3</script>"))
    with Browser() as window:
        window.open(broken)
        assert window.script("return window.owned === undefined")
        assert any("Content Security Policy" in message for message in window.errors())


def test_two_runs_compared(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / name, shape=name, num_tasks=16, iterations=4, evals=(3,))
            for name in ("healthy", "mute")]
    page = compare_runs([run.root for run in runs], tmp_path / "compare.html")
    with Browser() as window:
        window.open(page)
        assert window.script("return document.querySelectorAll('figure .line').length") >= 14
        assert window.errors() == []
