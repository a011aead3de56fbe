"""Single pictures for papers: any figure, or the grids of a task or completion, as SVG or PNG."""

import json
import re
import shutil
import subprocess
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from reports.build import EVENTS_SQL, FIGURES, draw_figure
from reports.drawing import WIDTH, Chart
from reports.figure import Figure
from reports.grids import cell_paths, cell_size, difference_marks
from reports.page import page_style
from warehouse.inspect.show import completion_row, grid_pairs, is_grid
from warehouse.sql.database import Connection, rows_of
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, shell_quote

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LOWEST = 160          # a lower window Chromium does not fill (of one 127 high it draws 40)
FONT = "font-family=\"Helvetica, Arial, sans-serif\""


def export_figure(connection: Connection, name: str, output: Path, *, dark: bool = False) -> None:
    """Write the figure `name` to `output`, .svg or .png."""
    figures = {figure.name: figure for figure in FIGURES}
    if name not in figures:
        raise StageError(f"There is no figure '{name}'. Known: {', '.join(figures)}.")
    chart = draw_figure(connection, figures[name], rows_of(connection, EVENTS_SQL))
    if chart is None:
        raise StageError(f"The figure '{name}' has nothing to show. {figures[name].missing}")
    write_picture(standalone(figures[name], chart, dark=dark), output)


def standalone(figure: Figure, chart: Chart, *, dark: bool = False) -> str:
    """A figure's chart with its title, legend and colours in one SVG."""
    parts = re.fullmatch(r"<svg[^>]*viewBox=\"0 0 [\d.]+ ([\d.]+)\"[^>]*>(.*)</svg>", chart.svg, re.DOTALL)
    assert parts
    colors = palette(dark)
    heading = [f'<text x="8" y="22" font-size="14" font-weight="600" fill="{colors["ink"]}" {FONT}>'
               f"{escape(figure.title)}</text>"]
    across, down, top = 8.0, 32, 34
    for index, (tone, name) in enumerate(chart.legend):
        color, wide = colors[f"t{tone}"], 30 + 6.2 * len(name)
        if across > 8 and across + wide > WIDTH:
            across, down = 8.0, down + 16
        key = (f'<circle cx="{across + 5}" cy="{down + 5}" r="4" fill="none" stroke="{color}" '
               'stroke-width="2"/>'
               if index in chart.hollow
               else f'<rect x="{across}" y="{down}" width="10" height="10" rx="2" fill="{color}"/>')
        heading.append(f'{key}<text x="{across + 15}" y="{down + 9}" font-size="11" fill="{colors["ink"]}" '
                       f"{FONT}>{escape(name)}</text>")
        across, top = across + wide, down + 20
    height = float(parts[1]) + top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}"><style>{_style(colors)}</style><rect width="100%" height="100%" '
        f'fill="{colors["card"]}"/>{"".join(heading)}<g transform="translate(0 {top})">{parts[2]}</g></svg>'
    )


def palette(dark: bool) -> dict[str, str]:
    """The page's colours, read from its style sheet."""
    blocks = re.findall(r":root[^{]*\{([^{}]*)\}", page_style())
    return dict(re.findall(r"--([\w-]+): ([^;]+);", blocks[-1 if dark else 0]))


def _style(colors: dict[str, str]) -> str:
    """The rules that charts need, with colours put in: viewers of SVG know no variables."""
    kinds = r"grid|tick|small|line|band|dot|ring|level|alarm|cursor|event|fired|back|gap|t\d|heat|h\d"
    marks = rf"^\.(?:{kinds})[^{{]*\{{[^}}]*\}}.*$"
    wanted = "\n".join(re.findall(marks, page_style(), re.MULTILINE))
    rules = re.sub(r"var\(--([\w-]+)\)", lambda name: colors[name[1]], wanted)
    return f"text {{ font-family: Helvetica, Arial, sans-serif }}\n{rules}"


def export_grids(connection: Connection, run: Path, name: str, output: Path) -> None:
    """Write the grids of a task, or of a completion (ITERATION/TASK/SAMPLE) with its outputs."""
    outputs: dict[str, Any] = {}
    task = name
    if re.fullmatch(r"\d+/.+/\d+", name):
        row = completion_row(connection, run, name)
        task, outputs = row["task_id"], json.loads(row["outputs"] or "{}")
    known = rows_of(connection, "SELECT payload FROM tasks WHERE task_id = $1", [task])
    if not known:
        raise StageError(f"There is no task '{task}'. List them with `warehouse tasks list "
                         f"{shell_quote(run)}`")
    write_picture(grid_sheet(json.loads(known[0]["payload"] or "{}"), outputs), output)


def grid_sheet(payload: dict[str, Any], outputs: dict[str, Any]) -> str:
    """Every pair of a task as a column: input above, expected below, output last where there is one."""
    across, tallest, marks = 12.0, 0.0, []
    for title, given, expected, made in grid_pairs(payload, outputs):
        marks.append(f'<text x="{across:g}" y="16" font-size="11" fill="#555" {FONT}>{escape(title)}</text>')
        down, widest = 24.0, 40.0
        for grid in filter(is_grid, (given, expected, made)):
            height, width = len(grid), len(grid[0])
            size = cell_size(height, width, 140)
            wrong = difference_marks(grid, expected) if grid is made and is_grid(expected) else ""
            marks.append(f'<g transform="translate({across:g} {down:g}) scale({size})">'
                         f"{cell_paths(grid)}{wrong}</g>")
            down, widest = down + height * size + 12, max(widest, width * size)
        across, tallest = across + widest + 16, max(tallest, down)
    if not marks:
        raise StageError("This task has no grids to draw.")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:g} {tallest:g}" width="{across:g}" '
        f'height="{tallest:g}"><rect width="100%" height="100%" fill="#fff"/>{"".join(marks)}</svg>'
    )


def write_picture(svg: str, output: Path) -> None:
    """Write SVG as it is, or as PNG at twice the size through a headless browser."""
    if output.suffix == ".svg":
        replace_bytes(output, svg.encode())
        return
    if output.suffix != ".png":
        raise StageError(f"Cannot write '{output.suffix}' pictures. Name a file that ends in .svg or .png.")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if not browser:
        raise StageError("PNG pictures are made by a headless browser, and none was found (chromium, "
                         "google-chrome). Install one, or write .svg and convert it.")
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    ground = re.search(r'<rect width="100%" height="100%" fill="([^"]+)"', svg)
    assert size and ground
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "page.html", Path(folder) / "picture.png"
        style = f"body{{margin:0;background:{ground[1]}}}svg{{display:block}}"
        page.write_text(f"<style>{style}</style>{svg}", encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--force-device-scale-factor=2", f"--user-data-dir={folder}/profile",
                   f"--window-size={round(float(size[1]))},{max(LOWEST, round(float(size[2])))}",
                   f"--screenshot={picture}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if not picture.exists():
            raise StageError(f"{browser} made no picture: {done.stderr.strip()[-300:]}")
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(picture.read_bytes())
