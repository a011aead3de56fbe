"""The viewer in a headless browser: questions answered by clicks and keys, and nothing run but our script."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import MISSING, Browser, is_there
from tests.building.runs import back_before, copy_run, finish
from tests.building.weather import SCORER, build_run
from tests.reports.viewer.test_app import HOSTILE, replace_completions
from warehouse.store.run_folder import Warehouse

pytestmark = [pytest.mark.skipif(not is_there(), reason=MISSING),
              pytest.mark.slow("drives a browser through servers of its own, a minute of two cores")]

CLICK = "const found = document.querySelector(arguments[0]); if (found) found.click(); return !!found"
POINT = """
const svg = document.querySelector(`#${arguments[0]} svg.chart`);
svg.scrollIntoView({block: 'center'});
const box = svg.getBoundingClientRect(), facts = charts.find((one) => one.svg === svg).facts;
const scale = box.width / svg.viewBox.baseVal.width, at = facts.x.indexOf(arguments[1]);
const y = facts.rows ? (facts.top + facts.row * (arguments[2] + .5)) * scale : box.height / 2;
svg.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX: box.x + facts.px[at] * scale,
                                           clientY: box.y + y}))"""


class Site:
    """`reports serve` of some runs, and a window that shows it."""

    def __init__(self, window: Browser, *runs: Path) -> None:
        command = [sys.executable, "-c", "from reports.cli import cli; cli()", "serve", *map(str, runs)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()
        self.window = window
        self.go(self.address)

    def go(self, place: str) -> None:
        """Open a page."""
        root = re.match(r"http://[^/]+", self.address)
        assert root
        self.window._command("POST", "/url", {"url": place if "://" in place else root[0] + place})

    def has(self, words: str) -> None:
        """Wait until the page shows some words."""
        self.until(lambda: words in self.window.script("return document.body.innerText"), words)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        end = time.monotonic() + 120
        while not done():
            assert time.monotonic() < end, (what, self.window.script("return document.body.innerText")[:500])
            time.sleep(0.05)

    def click(self, chosen: str) -> None:
        """Click on what a selector finds, once it is there."""
        self.until(lambda: bool(self.window.script(CLICK, chosen)), chosen)

    def click_figure(self, name: str, x: int, row: int = 0) -> None:
        """Click on a figure of a run at an iteration, once it is drawn."""
        slot = f"document.querySelector('[data-figure-name={name}]')"
        self.until(lambda: bool(self.window.script(f"{slot}?.scrollIntoView(); return !!{slot}")), name)
        self.until(lambda: self.draws(name), name)
        self.window.script(POINT, name, x, row)

    def draws(self, name: str) -> bool:
        """Whether a figure is drawn and answers clicks."""
        return bool(self.window.script("return charts.some((one) => one.figure.id === arguments[0])", name))

    def end(self) -> int:
        """Leave the site, then Ctrl-C; the exit code comes back."""
        self.go("about://blank")
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=120)


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, run: Warehouse) -> list[Path]:
    hacked = build_run(tmp_path_factory.mktemp("served") / "hacked", shape="length-hacking", iterations=8)
    return [run.root, hacked.root]


@pytest.fixture(scope="module")
def site(window: Browser, runs: list[Path]) -> Iterator[Site]:
    made = Site(window, *runs)
    yield made
    assert made.end() == 0


@pytest.fixture(autouse=True)
def silent(window: Browser) -> Iterator[None]:
    yield
    assert window.errors() == []


def test_why_did_it_fall_at_iteration_7(site: Site) -> None:
    site.go("/")
    site.click("a[href='/blow-up/']")
    site.click_figure("passes", 7)
    site.has("What changed since iteration 6")
    site.has("truncated")
    site.click("a[href*='no_code']")
    site.has("no_code")
    rows = "return document.querySelectorAll('.list .row a').length"
    site.until(lambda: site.window.script(rows) > 10, "rows")


def test_which_tasks_were_forgotten(site: Site) -> None:
    site.go("/")
    site.click("a[href='/blow-up/']")
    site.click("nav a[href=tasks]")
    site.has("by no completion of the latest iteration that sampled them")
    site.click("tbody tr td a")
    site.has("The task")
    assert site.window.script("return document.querySelectorAll('svg.arc').length") >= 8


def test_what_a_rewarded_wrong_answer_looks_like(site: Site) -> None:
    site.go("/")
    site.click("a[href='/hacked/']")
    site.click("a[href*='NOT+correct+AND+reward+%3E+0']")
    site.click(".list .row a")
    site.has("wrong")
    site.has("The program that was run")


def test_which_tokens_engine_and_trainer_disagree_about(site: Site) -> None:
    site.go("/")
    site.click("a[href='/blow-up/']")
    site.click_figure("ratios", 5)
    site.has("Engine against trainer, iteration 5")
    site.click("a.around")
    site.has("coloured by")
    chosen, marked = site.window.script("return [document.getElementById('colour').value, "
                                        "document.querySelectorAll('#tokens .at').length]")
    assert (chosen, marked) == ("gap", 1)


def test_a_cell_of_the_heat_map_leads_to_its_task(site: Site) -> None:
    site.go("/blow-up/")
    site.click_figure("tasks", 3, row=1)
    site.has("First solved at")


def test_tokens_tell_their_values_by_keyboard_and_change_colour(site: Site) -> None:
    site.go("/blow-up/completion?name=3/task-003/4")
    site.has("coloured by")
    site.window.script("const key = {key: 'ArrowRight', bubbles: true};"
                       "for (const _ of [1, 2]) tokens.dispatchEvent(new KeyboardEvent('keydown', key))")
    told = site.window.script("return document.getElementById('token').textContent")
    assert told.startswith("token 1,") and "Engine against trainer" in told and "Logprob, engine" in told
    before = site.window.script("return [...tokens.children].map((one) => one.className)")
    site.window.script("const choice = document.getElementById('colour'); choice.value = 'pull';"
                       "choice.dispatchEvent(new Event('change'))")
    after = site.window.script("return [...tokens.children].map((one) => one.className)")
    assert before != after and "colour=pull" in site.window.script("return location.href")


def test_a_long_list_scrolls_and_holds_few_rows_at_a_time(site: Site) -> None:
    site.go("/blow-up/find")
    site.has("1,280 completions")
    site.window.script("const pane = document.querySelector('.window'); pane.scrollTop = pane.scrollHeight")
    last = "return [...document.querySelectorAll('.window .row')].at(-1)?.getAttribute('aria-rowindex')"
    site.until(lambda: site.window.script(last) == "1281", "the last row")
    assert site.window.script("return document.querySelectorAll('.window .row').length") < 100
    site.window.script("document.querySelector('.window .row a').focus();"
                       "const key = {key: 'ArrowDown', bubbles: true};"
                       "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', key))")
    assert site.window.script("return document.activeElement.closest('.row') !== null")


def test_a_search_shows_its_hits(site: Site) -> None:
    site.go("/blow-up/find?text=fliplr")
    site.has("all looked at")
    assert site.window.script("return document.querySelectorAll('#hits .hit').length") > 10


@pytest.mark.parametrize("dark", [False, True])
def test_no_page_scrolls_sideways_on_a_phone(site: Site, dark: bool) -> None:
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    with Browser(dark=dark, width=500) as phone:
        phone._command("POST", "/goog/cdp/execute",
                       {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
        other = object.__new__(Site)
        other.window, other.address = phone, site.address
        other.go(site.address)
        for page in ("", "tasks", "settings", "history", "find", "gaps", "iteration?iteration=7",
                     "task?task=task-003", "group?iteration=7&group=7/train/task-003/0",
                     "completion?name=3/task-003/4"):
            other.go(f"/blow-up/{page}")
            assert phone.script("return document.documentElement.scrollWidth <= innerWidth"), page
            assert phone.script("return [...document.querySelectorAll('input:not([type=hidden]), select, "
                                "textarea, button')].every((one) => one.labels?.length || one.ariaLabel "
                                "|| one.textContent)"), page
        assert phone.errors() == []


def test_a_new_point_appears_while_the_page_is_open(window: Browser, run: Warehouse, tmp_path: Path) -> None:
    keys = {"iteration": 7, "purpose": "train", "scorer": SCORER}
    copy = back_before(copy_run(run, tmp_path / "copy"), "score", complete=True, **keys)
    live = Site(window, copy.root)
    try:
        live.has("score of iteration 7")
        live.until(lambda: live.draws("passes"), "passes")
        newest = "return Math.max(...charts.find((one) => one.figure.id === 'passes').facts.x)"
        assert window.script(newest) == 6
        finish(copy, "score", **keys)
        live.until(lambda: window.script(newest) == 7, "the new point")
    finally:
        assert live.end() == 0


def test_a_hostile_completion_does_nothing(window: Browser, run: Warehouse, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    replace_completions(copy, HOSTILE)
    hostile = Site(window, copy.root)
    try:
        for page in ("completion?name=0/task-003/4", "find?text=owned"):
            hostile.go(f"/copy/{page}")
            hostile.has("<script>window.owned")
            assert window.script("return window.owned === undefined && !document.querySelector('main img')")
    finally:
        assert hostile.end() == 0
