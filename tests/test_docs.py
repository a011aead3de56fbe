"""The pages link what exists and one another, show what the commands print, and repeat what the code says."""

import ast
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import FOLDER, pages
from warehouse.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         ROOT / "tests/fixtures/README.md", ROOT / "examples/starter/MODEL.md",
         *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("rollout", "score", "train", "warehouse", "reports")


def links(page: Path) -> list[Path]:
    """The files that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [target for target in links(page) if not target.exists()] == []


def anchors(page: Path) -> set[str]:
    """What may stand behind the # of a link to a page: its headings as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_anchor_is_a_heading(page: Path) -> None:
    named = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
    assert [(target, anchor) for target, anchor in named if "://" not in target
            and anchor not in anchors((page.parent / target).resolve() if target else page)] == []


def test_the_index_links_every_page() -> None:
    linked = set(links(ROOT / "docs" / "index.md"))
    pages = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")} - {ROOT / "docs" / "index.md"}
    assert pages <= linked


def test_the_reference_pages_are_what_the_code_says() -> None:
    stored = {page.name: page.read_text() for page in FOLDER.iterdir()}
    assert stored == pages(), "run: python -m docs.generate"


def test_every_name_in_the_condition_of_an_alarm_is_a_column_or_explained() -> None:
    intro, _, rows = (FOLDER / "alarms.md").read_text().partition("signal|meaning")
    names = {*re.findall(r"\b[a-z]+_\w+", " ".join(re.findall(r"(?<=\|)`[^`]*`", rows)))}
    columns = re.findall(r"^(\w+)\|", (FOLDER / "schema.md").read_text(), flags=re.MULTILINE)
    kinds = tuple(re.findall(r"`(\w+_)x`", intro)), tuple(re.findall(r"`x(_\w+)`", intro))
    assert len(names) > 30 and [name for name in sorted(names - {*columns}) if f"`{name}`" not in intro
                                and not name.startswith(kinds[0]) and not name.endswith(kinds[1])] == []


def test_every_key_of_the_config_is_an_option_that_the_help_shows() -> None:
    shown = {*re.findall(r"--([a-z0-9-]+)", (FOLDER / "commands.md").read_text())}
    tables = re.findall(r"^\[(\w+)\]\|(`.*)", (FOLDER / "config.md").read_text(), flags=re.MULTILINE)
    keys = {key for name, row in tables if name != "warehouse" for key in re.findall(r"`([a-z0-9-]+)", row)}
    assert len(keys) > 100 and keys <= shown


def test_the_docs_stay_short() -> None:
    readme = len((ROOT / "README.md").read_text().split())
    others = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    assert readme <= 900 and readme + others <= 30_000


def test_every_page_begins_with_what_its_reader_can_do() -> None:
    for page in {*(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "index.md"}:
        assert page.read_text().split("\n\n")[1].startswith("After this page you"), page.name


def test_the_picture_of_the_rooms_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_rooms.py"))["draw"]()
    assert (ROOT / "docs" / "rooms.svg").read_text() == drawn, "run: python docs/draw_rooms.py"


def test_the_design_repeats_the_rule_of_every_room() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    for room in ROOMS:
        rule = (ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or "").splitlines()[0]
        assert f"| {room}/ | {rule} |" in text


def test_the_words_of_the_glossary_are_in_order() -> None:
    words = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)[2:]
    assert len(words) >= 25 and words == sorted(words, key=str.lower)


def test_the_walk_along_one_completion_shows_what_its_queries_answer(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "fixtures" / "run-0.2.0", tmp_path / "run")
    text = (ROOT / "docs" / "one-completion.md").read_text()
    steps = re.findall(r"```bash\n(warehouse sql [^\n]*)\n```\n\n```json\n(.*?)```", text, flags=re.DOTALL)
    assert len(steps) == text.count("warehouse sql") >= 6
    for line, shown in steps:
        words = shlex.split(line.replace("/tmp/run", str(tmp_path / "run")))
        result = CliRunner().invoke(cli, words[1:])
        assert (result.exit_code, result.stdout) == (0, shown), line
