"""Pages about whole runs: their list, one with its figures, settings and history, several compared."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from threading import Thread
from typing import Any, NamedTuple

from markupsafe import Markup

from reports.build import EVENTS_SQL, FIGURES, SECTIONS, STATS_SQL, change, draw_figure, headline, stats_table
from reports.compare import comparison, open_comparable
from reports.drawing import Chart
from reports.page import alarm_notice, figure_block, tiles
from reports.viewer import find, links, render
from reports.viewer.links import Query
from reports.viewer.render import Page
from reports.viewer.session import Asking, Session, View
from warehouse.inspect.advice import SETTING_CHANGES, advise, judged_lines
from warehouse.inspect.alarms import Alarm, alarm_count_lines, last_rollback, raised_alarms
from warehouse.inspect.history import history
from warehouse.inspect.story import story_lines
from warehouse.inspect.summary import turning_points
from warehouse.sql.database import Connection, rows_of
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError

CURVE_SQL = """\
SELECT iteration, purpose, pass_at_1 FROM iteration_stats WHERE turn_of(purpose) = 1
AND iteration NOT IN (FROM given_up) ORDER BY purpose = 'train', purpose, iteration"""
SETTINGS_SQL = """\
SELECT stage, if(name = 'code', 'code_version', name) AS name,
       CASE name WHEN 'prompt_format' THEN coalesce((
           SELECT string_agg(DISTINCT prompt_format, ', ' ORDER BY prompt_format) FROM prompts
           WHERE purpose = 'train' AND iteration = last_iteration), value) ELSE value END AS value FROM (
    SELECT stage, iteration AS last_iteration, unnest(json_keys(settings)) AS name, settings ->> name AS value
    FROM (SELECT stage, iteration, settings FROM stages
          WHERE coalesce(purpose, 'train') = 'train' AND (scorer IS NULL OR (iteration, purpose, scorer) IN (
              SELECT (iteration, purpose, scorer) FROM scorers WHERE chosen))
          QUALIFY row_number() OVER (PARTITION BY stage ORDER BY iteration DESC) = 1))
ORDER BY ALL"""
HISTORY_SQL = """\
SELECT finished_at, stage, iteration, purpose, scorer, seconds, bytes, host, rollhouse_version
FROM stages ORDER BY finished_at DESC LIMIT 500"""
FORGOTTEN_SQL = """\
SELECT task_id, best_rate, last_rate, last_solved, last_iteration FROM task_history
WHERE forgotten ORDER BY best_rate DESC, task_id LIMIT 8"""
SECONDS_FOR_LINE = 0.3      # for which the list of runs waits
MOST_ENTRIES = 1000


class Line(NamedTuple):
    story: str
    curve: str
    alarms: str
    passes: str
    iterations: int
    settings: dict[str, str]


def with_signals(view: View, ask: Asking) -> Connection:
    """The connection with the signals of this view computed once: many pages use them, and they are slow."""
    view.once("signals", lambda: view.connection.cursor().execute(
        "CREATE TABLE IF NOT EXISTS held_signals AS FROM signals; "
        "CREATE OR REPLACE VIEW signals AS FROM held_signals"))
    return ask.connection


def alarms_of(view: View) -> list[Alarm]:
    """Signals fired or raised since the last rollback, with example completions."""
    return view.once("alarms", lambda: raised_alarms(with_signals(view, view.asking()),
                                                     since=last_rollback(view.warehouse)))


def line_of(view: View) -> Line:
    def make() -> Line:
        ask, alarms = view.asking(), alarms_of(view)
        rows = {purpose: list(each) for purpose, each in groupby(ask.rows(CURVE_SQL), itemgetter("purpose"))}
        stats = rows.get("train", [])
        settings = {f"{row['stage']} {row['name']}": row["value"] for row in ask.rows(SETTINGS_SQL)}
        passes = ", ".join(f"{change(each, 'pass_at_1')} {'training' if purpose == 'train' else purpose}"
                           for purpose, each in rows.items())
        counts = alarm_count_lines(view.warehouse, alarms)
        return Line(" ".join(story_lines(ask.connection, alarms)),
                    spark([row["pass_at_1"] for row in stats]),
                    counts[0].partition(": ")[0] if counts else "", passes, len(stats), settings)
    return view.once("line", make)


def spark(shares: Sequence[float | None]) -> str:
    """Shares as a small line from 0 to 1."""
    points = [(i, share) for i, share in enumerate(shares) if share is not None]
    wide = max(len(shares) - 1, 1)
    path = "L".join(f"{120 * i / wide:.1f} {23 - 22 * share:.1f}" for i, share in points)
    return (f'<svg class="spark t1" viewBox="0 0 120 24" role="img" aria-label="pass@1 over iterations">'
            f'<path class="line" d="M{path}"/></svg>') if points else ""


def keep_line(session: Session) -> None:
    """Compute a run's line of the data now; StageError if it cannot be read."""
    try:
        session.line = line_of(session.view())
    except StageError:
        session.line = None
        raise


def newest_line(session: Session) -> Line | None:
    """A run's line; that of earlier data, or None, if the new one takes long to compute."""
    def compute() -> None:
        with suppress(StageError):          # which the session keeps
            keep_line(session)
    if not session.at_work.is_alive():
        session.at_work = Thread(target=compute, daemon=True)
        session.at_work.start()
    session.at_work.join(SECONDS_FOR_LINE)
    return session.line


def runs_page(sessions: Sequence[Session]) -> Page:
    """Every run in a line; the page loads again while one of them is computed."""
    lines = {session.name: line for session in sessions if (line := newest_line(session))}
    known = [line.settings for line in lines.values()]
    names = sorted({name for settings in known for name in settings})
    differ = [name for name in names if len({settings[name] for settings in known if name in settings}) > 1
              and not name.endswith(("sha256", "version"))]
    rows = [{"name": session.name, "path": session.path, "line": lines.get(session.name),
             "problem": session.problem,
             "settings": [(name, lines[session.name].settings.get(name)) for name in differ]
             if session.name in lines else []} for session in sessions]
    waiting = any(session.at_work.is_alive() for session in sessions)
    return Page("runs.html", "Runs", {"rows": rows, "waiting": waiting})


def run_page(view: View, _ask: Asking, _query: Query) -> Page:
    """A run: its story and figures are requested one by one, and again when there is new data."""
    sections = [(title, [(figure.name, figure.title) for figure in group]) for title, group in SECTIONS]
    saved = read_config(view.warehouse.root / "config.toml").get("links", {})
    return Page("run.html", view.warehouse.root.name, {
        "subtitle": f"base {view.warehouse.base_name} · run {view.warehouse.run_id[:8]} · "
                    f"{view.warehouse.root}",
        "sections": sections, "saved": saved, "questions": find.QUESTIONS})


def story_answer(view: View, _ask: Asking, _query: Query) -> dict[str, str]:
    """The story of the run's page, which is slow."""
    return {"html": story_of(view), "version": view.version}


def story_of(view: View) -> str:
    """A verdict in words, the most important numbers, and alarms with example completions."""
    def make() -> str:
        ask, alarms = view.asking(), alarms_of(view)
        stats, story = ask.rows(STATS_SQL), story_lines(ask.connection, alarms)
        if not stats:
            return render.fragment("story.html", lines=story, parts=[], lost=[])
        notice = alarm_notice(alarms, advise(view.warehouse, ask.connection, alarms).lines,
                              judged_lines(ask.connection, last_rollback(view.warehouse)),
                              turning_points(view.warehouse.state),
                              link=lambda name: links.address("completion", name=name))
        return render.fragment("story.html", lines=story, lost=ask.rows(FORGOTTEN_SQL),
                               parts=[Markup(tiles(headline(ask.connection, stats))), Markup(notice)],
                               numbers=Markup(stats_table(stats)))
    return view.once("story", make)


def figure_answer(view: View, ask: Asking, query: Query) -> dict[str, Any]:
    """A figure of the report, with its readout."""
    name = query.text("figure")
    if not (figure := FIGURES.get(name)):
        raise StageError(f"There is no figure '{name}'. Load the page again.")

    def make() -> Chart | None:
        events = view.once("events", lambda: rows_of(with_signals(view, ask), EVENTS_SQL))
        return draw_figure(ask.connection, figure, events)
    chart = view.once(f"figure {name}", make)
    return {"html": figure_block(figure, chart), "facts": chart.hover if chart else None,
            "version": view.version}


def settings_page(_view: View, ask: Asking, _query: Query) -> Page:
    """The settings of the latest stages, and where they changed."""
    return Page("settings.html", "Settings", {
        "changes": ask.rows(f"{SETTING_CHANGES} ORDER BY iteration DESC, stage, name"),
        "now": ask.rows(SETTINGS_SQL)})


def history_page(view: View, ask: Asking, _query: Query) -> Page:
    """Every entry of the log, latest first, and the duration of every stage."""
    return Page("history.html", "History", {"entries": history(view.warehouse.state)[:MOST_ENTRIES],
                                            "rows": ask.rows(HISTORY_SQL)})


def compare_page(sessions: Sequence[Session]) -> Page:
    """Several runs side by side, as `reports compare` writes them."""
    if len(sessions) < 2:
        raise StageError("A comparison needs at least two runs. Choose them on the first page.")
    title, subtitle, body, data = comparison(open_comparable([session.root for session in sessions]))
    return Page("compare.html", title, {"subtitle": subtitle, "body": Markup(body), "data": data})
