"""Single pictures for papers: any figure as an SVG."""

import re
from html import escape
from pathlib import Path

from reports.build import EVENTS_SQL, FIGURES, draw_figure
from reports.drawing import WIDTH, Chart
from reports.figure import Figure
from reports.page import asset
from warehouse.sql.database import Connection, rows_of
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError


def export_figure(connection: Connection, name: str, output: Path) -> None:
    """Write the figure `name` to `output`, an .svg file."""
    if output.suffix != ".svg":
        raise StageError(f"Figures are written as SVG, not '{output.suffix}'. Name a file that ends in .svg.")
    if name not in FIGURES:
        raise StageError(f"There is no figure '{name}'. Known: {', '.join(FIGURES)}.")
    chart = draw_figure(connection, FIGURES[name], rows_of(connection, EVENTS_SQL))
    if chart is None:
        raise StageError(f"The figure '{name}' has nothing to show. {FIGURES[name].missing}")
    replace_bytes(output, standalone(FIGURES[name], chart).encode())


def standalone(figure: Figure, chart: Chart) -> str:
    """A figure's chart with its title, legend and colours in one SVG."""
    parts = re.fullmatch(r"<svg[^>]*viewBox=\"0 0 [\d.]+ ([\d.]+)\"[^>]*>(.*)</svg>", chart.svg, re.DOTALL)
    assert parts
    colors = palette()
    heading = [f'<text x="8" y="22" font-size="14" font-weight="600" fill="{colors["ink"]}">'
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
        heading.append(f'{key}<text x="{across + 15}" y="{down + 9}" font-size="11" fill="{colors["ink"]}">'
                       f"{escape(name)}</text>")
        across, top = across + wide, down + 20
    height = float(parts[1]) + top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}"><style>{_style(colors)}</style><rect width="100%" height="100%" '
        f'fill="{colors["card"]}"/>{"".join(heading)}<g transform="translate(0 {top})">{parts[2]}</g></svg>'
    )


def palette() -> dict[str, str]:
    """The page's light colours, read from its style sheet."""
    first = re.findall(r":root[^{]*\{([^{}]*)\}", asset("page.css"))[0]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", first))


def _style(colors: dict[str, str]) -> str:
    """The rules that charts need, with colours put in: viewers of SVG know no variables."""
    kinds = r"grid|tick|small|line|band|dot|ring|level|alarm|cursor|event|fired|back|gap|t\d|heat|h\d"
    marks = rf"^\.(?:{kinds})[^{{]*\{{[^}}]*\}}.*$"
    wanted = "\n".join(re.findall(marks, asset("page.css"), re.MULTILINE))
    rules = re.sub(r"var\(--([\w-]+)\)", lambda name: colors[name[1]], wanted)
    return f"text {{ font-family: Helvetica, Arial, sans-serif }}\n{rules}"
