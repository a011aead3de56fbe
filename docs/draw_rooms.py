"""Draw the picture of the rooms in the README: python docs/draw_rooms.py writes docs/rooms.svg."""

from pathlib import Path

# A room, what it does, what it reads from the warehouse and what it writes there.
ROOMS = (
    ("rollout", "samples completions (vLLM)", ("tasks", "policy I"), ("prompts", "completions")),
    ("score", "runs the programs in them", ("completions", "tasks"), ("samples",)),
    ("train", "learns from scored groups", ("completions", "samples"), ("train_samples", "policy I + 1")),
    ("reports", "draws pages from SQL", ("everything",), ()),
)
WIDTH, GAP, MARGIN = 205, 20, 20
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f }
.name { font-size: 17px; font-weight: 600 }
.table { font-family: ui-monospace, monospace; font-size: 12px }
.room { fill: #ddf4ff; stroke: #0969da }
.store { fill: #fff8c5; stroke: #9a6700 }
.shaft { stroke: #57606a; stroke-width: 1.5 }
.head { marker-end: url(#head) }
#head path { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .room { fill: #0c2d6b; stroke: #58a6ff }
  .store { fill: #3d2e00; stroke: #d29922 }
  .shaft { stroke: #8b949e }
  #head path { fill: #8b949e }
}
"""


def draw() -> str:
    """The picture as SVG text."""
    total = 2 * MARGIN + len(ROOMS) * WIDTH + (len(ROOMS) - 1) * GAP
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 300" width="{total}" '
             'height="300" role="img" '
             'aria-label="Four rooms over one warehouse, and what each reads and writes">',
             f"<style>{STYLE}</style>",
             '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
             '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>']
    for number, (name, what, reads, writes) in enumerate(ROOMS):
        left = MARGIN + number * (WIDTH + GAP)
        lines += [f'<rect class="room" x="{left}" y="20" width="{WIDTH}" height="66" rx="8"/>',
                  _text(left + WIDTH / 2, 48, name, "name"), _text(left + WIDTH / 2, 70, what)]
        lines += _arrow(left + WIDTH / 4, 208, 92, reads)
        lines += _arrow(left + 3 * WIDTH / 4, 88, 204, writes) if writes else []
    lines += [f'<rect class="store" x="{MARGIN}" y="212" width="{total - 2 * MARGIN}" height="66" rx="8"/>',
              _text(total / 2, 240, "warehouse", "name"),
              _text(total / 2, 262, "Parquet files in one folder per run, SQL over them; "
                                    "the rooms know it and not each other")]
    return "\n".join([*lines, "</svg>\n"])


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="middle">{words}</text>'


def _arrow(x: float, start: float, end: float, names: tuple[str, ...]) -> list[str]:
    """An arrow with the tables that go along it, which interrupt its shaft."""
    top, bottom = 150 - 9 * len(names), 150 + 9 * len(names)
    near, far = (bottom, top) if start > end else (top, bottom)
    return [f'<line class="shaft" x1="{x:g}" y1="{start:g}" x2="{x:g}" y2="{near:g}"/>',
            f'<line class="shaft head" x1="{x:g}" y1="{far:g}" x2="{x:g}" y2="{end:g}"/>',
            *(_text(x, top + 13 + 18 * row, name, "table") for row, name in enumerate(names))]


if __name__ == "__main__":
    Path(__file__).with_name("rooms.svg").write_text(draw())
