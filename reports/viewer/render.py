"""Pages as HTML: filled templates."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jinja2

from reports.page import asset
from reports.scale import NO_VALUE, number
from reports.viewer import links
from warehouse.inspect.render import UNSET
from warehouse.store.errors import printable

MOST_SHOWN = 20_000     # characters of a text in a page; a link leads to the whole


class Page(NamedTuple):
    """A page to render: its template, its title, and the template's values."""

    template: str
    title: str
    context: dict[str, Any]


@cache
def environment() -> jinja2.Environment:
    """The template environment; all values are escaped."""
    made = jinja2.Environment(loader=jinja2.PackageLoader("reports.viewer", "pages"), autoescape=True,
                              undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                              finalize=lambda value: NO_VALUE if value is None else value)
    made.filters |= {"number": number, "printable": printable, "text": text_to_show}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.globals |= {"links": links, "UNSET": UNSET}
    return made


def text_to_show(text: str | None) -> tuple[str, int]:
    """A model's text, control characters spelled out, and how many of a very long one its middle lacks."""
    text = text or ""
    half = MOST_SHOWN // 2
    if len(text) > MOST_SHOWN:
        return f"{printable(text[:half])}\n[…]\n{printable(text[-half:])}", len(text) - MOST_SHOWN
    return printable(text), 0


def style() -> str:
    """The style sheets of reports and of the viewer."""
    return asset("page.css") + asset("viewer.css", "reports.viewer")


def script() -> str:
    return asset("charts.js") + asset("tokens.js", "reports.viewer") + asset("viewer.js", "reports.viewer")


def html(page: Page, *, run: str | None = None, asked: Sequence[str] = (), here: str = "") -> str:
    """A page with its frame: the run, the page's SQL and its address."""
    return environment().get_template(page.template).render(
        {"run": run, "asked": asked, "here": here, **page.context, "title": page.title})


def fragment(name: str, **context: Any) -> str:
    return environment().get_template(name).render(context)
