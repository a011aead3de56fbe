"""HTML out of figures and samples; every piece of model text passes through `escape`."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from reports.drawing import Chart
from reports.figure import Figure
from reports.grids import GridSheet
from reports.samples import PICKS, Sample, shorten
from warehouse.inspect.alarms import Alarm
from warehouse.inspect.show import grid_pairs
from warehouse.store.errors import counted, printable

SCRIPTS = ("charts.js", "page.js")
Link = Callable[[Alarm, str, int], str]


def page(title: str, subtitle: str, body: str, data: dict[str, Any], sheet: GridSheet, *,
         refresh: float | None = None) -> str:
    """A whole page in one file: no external request is possible, and only our own script may run."""
    again = f'<meta http-equiv="refresh" content="{refresh:g}">' if refresh else ""
    style = page_style()
    script = "".join(files("reports").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy, island = content_policy(style, script), data_island(data)
    template = Template(files("reports").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(policy=policy, refresh=again, title=escape(title), style=style,
                               subtitle=escape(subtitle), script=script, symbols=sheet.symbols(),
                               body=body, data=island)


def content_policy(style: str, script: str) -> str:
    """Nothing but this style and this script may run or load."""
    return (f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'")


def data_island(data: object) -> str:
    """Data as JSON that may stand in a page."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def page_style() -> str:
    """The style sheet of every page, which also holds the colours of single pictures."""
    return files("reports").joinpath("page.css").read_text(encoding="utf-8")


def figure_block(figure: Figure, chart: Chart | None) -> str:
    """One figure with its caption, legend and the SQL that made it; without chart, what is missing."""
    legend = ""
    if chart and chart.legend:
        entries = "".join(
            f'<li><i class="{kind}{tone}"></i>{escape(name)}</li>'
            for index, (tone, name) in enumerate(chart.legend)
            for kind in ["hollow t" if index in chart.hollow else "b"])
        legend = f'<ul class="legend">{entries}</ul>'
    picture = chart.svg if chart else f'<p class="empty">{escape(figure.missing)}</p>'
    return (
        f'<figure data-figure="{figure.name}" id="{figure.name}"><figcaption><h3>{escape(figure.title)}</h3>'
        f"<p>{escape(figure.caption)}</p></figcaption>{legend}{picture}"
        f"<details><summary>SQL</summary><pre>{escape(figure.sql)}</pre></details></figure>"
    )


def alarm_notice(alarms: Sequence[Alarm], advice: Sequence[str], judged: Sequence[str],
                 link: Link, back: Sequence[str] = ()) -> str:
    """What fired since when, with links to the completions that show it; rollbacks; what to do.

    `link` gives the address of an alarm's completion, '' where it cannot be shown.
    """
    firing = [alarm for alarm in alarms if alarm.fired]
    lists = "".join(f"<b>{title}</b><ul>{''.join(_alarm_item(alarm, link) for alarm in group)}</ul>"
                    for title, group in (
                        (f"{counted(len(firing), 'alarm')} since iteration "
                         f"{min((alarm.first_iteration for alarm in firing), default=0)}", firing),
                        ("Raised once; a second time in a row is an alarm",
                         [alarm for alarm in alarms if not alarm.fired])) if group)
    quiet = "" if firing else f"<b>No alarm{' since the last rollback' if back else ''}.</b> "
    notes = "".join(f"<p>{escape(line)}</p>" for line in (*back, *advice))
    marks = "".join(f'<p class="quiet">{escape(line)}</p>' for line in judged)
    kind = "notice" if firing else "notice once" if alarms or back else "notice good"
    return f'<div class="{kind}">{quiet}{notes}{lists}{marks}</div>'


def _alarm_item(alarm: Alarm, link: Link) -> str:
    places = [(link(alarm, task, index), f"{task} #{index}") for task, index in alarm.examples]
    links = ", ".join(f'<a href="{escape(place)}">{escape(name)}</a>' for place, name in places if place)
    errors = "".join(f"<br>{escape(line)}" for line in alarm.errors)
    return f"<li>{escape(alarm.sentence)}{f': {links}' if links else ''}{errors}</li>"


def sample_anchor(iteration: int, purpose: str, task: str, index: int) -> str:
    """The id of a sample's card."""
    return f"sample-{iteration}-{purpose}-{task}-{index}".replace(" ", "_")


def tiles(facts: Sequence[tuple[str, str]]) -> str:
    """A row of numbers with what they are."""
    cells = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
                    for name, value in facts)
    return f'<div class="tiles">{cells}</div>'


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table that scrolls sideways where it must."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def sample_browser(samples: Sequence[Sample], sheet: GridSheet) -> str:
    """Filters and one card per sample."""
    present = [kind for kind in PICKS if any(kind in sample.kinds for sample in samples)]
    buttons = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="false">{escape(PICKS[kind][0])}</button>'
        for kind in present)
    filters = ('<div class="filters"><button type="button" data-kind="" aria-pressed="true">All</button>'
               f'{buttons}<input id="search" type="search" placeholder="task or text" '
               'aria-label="Search the samples"><span class="quiet" id="count"></span></div>')
    return filters + "".join(sample_card(sample, sheet) for sample in samples)


def sample_card(sample: Sample, sheet: GridSheet) -> str:
    """A completion: its keys, program, grids and prompt."""
    row = sample.row
    verdict, kind = {True: ("right", "tag right"), False: ("wrong", "tag wrong")}.get(
        row["correct"], ("not scored", "tag"))
    reward = "not measured" if row["reward"] is None else f"{row['reward']:.4g}"
    facts = [f"iteration {row['iteration']}", *([] if row["purpose"] == "train" else [row["purpose"]]),
             f"sample {row['sample_index']}", f"reward {reward}",
             counted(row["num_completion_tokens"], "token"),
             "no policy" if row["policy_version"] is None else f"policy {row['policy_version']}",
             row["finish_reason"] or ""]
    error = " ".join(text for text in (row["error_class"], row["error_name"], row["error_message"]) if text)
    problem = f'<p class="quiet">{escape(shorten(error, 400))}</p>' if error else ""
    program = shorten(printable(row["completion"] or ""))
    anchor = sample_anchor(row["iteration"], row["purpose"], row["task_id"], row["sample_index"])
    tags = "".join(f'<span class="tag">{escape(PICKS[reason][0])}</span>'
                   for reason in sample.kinds if reason != "right")
    return (
        f'<article class="sample" id="{escape(anchor)}" data-kinds="{" ".join(sample.kinds)}">'
        f'<div class="head"><h3>{escape(str(row["task_id"]))}</h3><span class="{kind}">{verdict}</span>{tags}'
        f'<span class="quiet">{escape("  ·  ".join(facts))}</span></div>'
        f'<div class="cols"><div><pre>{escape(program)}</pre>{problem}'
        f"<details><summary>Prompt</summary><pre>{escape(shorten(printable(sample.prompt)))}</pre></details>"
        f'</div><div class="pairs">{_pairs(sample, sheet)}</div></div></article>'
    )


def _pairs(sample: Sample, sheet: GridSheet) -> str:
    """Input, expected and output grids of every pair; nothing for tasks that have no grids."""
    blocks = []
    for title, given, expected, made in grid_pairs(sample.payload, sample.outputs):
        shown = ((title, sheet.draw(given)), ("expected", sheet.draw(expected)),
                 ("output", sheet.draw(made, expected)))
        blocks.append("".join(f"<div>{svg}{escape(name)}</div>" for name, svg in shown))
    return "".join(f'<div class="pair">{block}</div>' for block in blocks)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
