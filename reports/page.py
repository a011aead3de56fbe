"""HTML from figures; all model text passes through `escape`."""

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
from warehouse.inspect.alarms import Alarm, groups_of
from warehouse.store.errors import counted

Link = Callable[[str], str]         # the page of a completion, by its name


def page(title: str, subtitle: str, body: str, data: dict[str, Any]) -> str:
    """A whole page in one file: external requests are impossible, and only our own script may run."""
    style, script = asset("page.css"), asset("charts.js")
    island = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")     # safe inside a page
    template = Template(asset("page.html"))
    return template.substitute(policy=content_policy(style, script), title=escape(title), style=style,
                               subtitle=escape(subtitle), script=script, body=body, data=island)


def content_policy(style: str, script: str) -> str:
    """A content policy that allows only this style and this script."""
    return (f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'")


def asset(name: str, package: str = "reports") -> str:
    """A file of a package: style, script or template; page.css also has the colours of single pictures."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def figure_block(figure: Figure, chart: Chart | None) -> str:
    """A figure with its caption, legend and SQL; without a chart, what is missing."""
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
                 back: Sequence[str] = (), link: Link = lambda name: "") -> str:
    """What fired since when, with completions as examples; rollbacks; what to do."""
    firing = [alarm for alarm in alarms if alarm.fired]
    since = min((alarm.first_iteration for alarm in firing), default=0)
    named = f"{counted(len(firing), 'alarm')} since iteration {since}"
    lists = "".join(f"<b>{title or named}</b><ul>{''.join(_alarm_item(alarm, link) for alarm in group)}</ul>"
                    for title, group in groups_of(alarms) if group)
    quiet = "" if firing else f"<b>No alarm{' since the last rollback' if back else ''}.</b> "
    notes = "".join(f"<p>{escape(line)}</p>" for line in (*back, *advice))
    marks = "".join(f'<p class="quiet">{escape(line)}</p>' for line in judged)
    kind = ("notice" if firing else "notice once" if back or any(not alarm.over for alarm in alarms)
            else "notice good")
    return f'<div class="{kind}">{quiet}{notes}{lists}{marks}</div>'


def _alarm_item(alarm: Alarm, link: Link) -> str:
    links = ", ".join(f'<a href="{escape(place)}">{escape(name)}</a>' if (place := link(name)) else
                      escape(name) for name in alarm.names())
    errors = "".join(f"<br>{escape(line)}" for line in alarm.errors)
    return f"<li>{escape(alarm.sentence)}{f': {links}' if links else ''}{errors}</li>"


def tiles(facts: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
                    for name, value in facts)
    return f'<div class="tiles">{cells}</div>'


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table that scrolls sideways if needed."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
