"""The site: which address makes which page, access control, and error pages."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reports.viewer import completions, find, iterations, links, live, overview, render, tokens
from reports.viewer.links import Query
from reports.viewer.render import Page
from reports.viewer.session import Asking, Session, View
from warehouse.store.errors import StageError

HOSTS = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
                               "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin"}


def make_app(sessions: Sequence[Session], token: str) -> ASGIApp:
    """The site of these runs; requests need the token."""
    known = {session.name: session for session in sessions}

    def runs(_request: Request) -> Response:
        return HTMLResponse(render.html(overview.runs_page(list(known.values()))))

    def style(_request: Request) -> Response:
        return Response(render.style(), media_type="text/css")

    def script(_request: Request) -> Response:
        return Response(render.script(), media_type="text/javascript")

    def compare(request: Request) -> Response:
        names = request.query_params.getlist("run")
        chosen = [known[name] for name in names if name in known]
        return guarded(request, lambda: HTMLResponse(render.html(overview.compare_page(chosen))))

    def run_page(request: Request) -> Response:
        session, name = known.get(request.path_params["run"]), request.path_params.get("page", "")
        if session is None or name not in ANSWERS:
            return problem(request, f"There is no page '{name}' here." if session else
                           f"No run '{request.path_params['run']}' is served. Start `reports serve` with it.",
                           404)
        return guarded(request, lambda: answered(session, name, Query(request.query_params)))

    return Guard(Starlette(routes=[
        Route("/", runs), Route("/compare", compare),
        Route("/static/style.css", style), Route("/static/script.js", script),
        Route("/{run}/", run_page), Route("/{run}/{page}", run_page)]), token)


def guarded(request: Request, make: Callable[[], Response]) -> Response:
    """A page, or its error as a page; retried if the run changed meanwhile."""
    try:
        try:
            return make()
        except StageError as error:
            if ".parquet" not in str(error):
                raise
            return make()       # compacted or discarded while it was read
    except StageError as error:
        return problem(request, str(error), 400)
    except MemoryError as error:
        return problem(request, f"The query needs more memory than the viewer has ({error}). Query fewer "
                                "iterations, as iteration = 7 AND ..", 400)
    except FileNotFoundError as error:
        return problem(request, f"{error.filename} is gone: it was moved, pruned or rolled back while it was "
                                "read. Load the page again.", 400)


def answered(session: Session, name: str, query: Query) -> Response:
    """The page, part or file of a run at an address."""
    view = session.view()
    ask = view.asking()
    answer = ANSWERS[name](view, ask, query)
    if not isinstance(answer, Page):
        return answer if isinstance(answer, Response) else JSONResponse(answer)
    here = links.address(name, **query.values)
    return HTMLResponse(render.html(answer, run=view.name, asked=ask.asked, here=here))


def go_behind(_view: View, _ask: Asking, query: Query) -> Response:
    return RedirectResponse(links.behind(query.text("figure"), query.number("x"), query.text("row", ""),
                                         query.text("series", "")), 303)


def whole_text(_view: View, ask: Asking, query: Query) -> Response:
    """A completion's plain text, which the browser must not interpret."""
    row = completions.row_of(ask, query.text("name"))
    return PlainTextResponse(row["completion"] or "", headers={
        "content-disposition": "attachment; filename=\"completion.txt\""})


def search(view: View, ask: Asking, query: Query) -> Response:
    """Completions that contain a text, a line of JSON each, as found; ends when the client disconnects."""
    return StreamingResponse(find.search_lines(view, ask, query.text("text"), query.text("where", "")),
                             media_type="application/x-ndjson")


# What each address of a run answers with: a page, a response, or data for a script.
ANSWERS: dict[str, Callable[[View, Asking, Query], Any]] = {
    "": overview.run_page, "settings": overview.settings_page, "history": overview.history_page,
    "tasks": iterations.tasks_page, "iteration": iterations.iteration_page, "task": iterations.task_page,
    "gaps": tokens.gaps_page, "group": completions.group_page,
    "completion": completions.completion_page, "find": find.find_page,
    "rows": find.rows_answer, "figure": overview.figure_answer, "story": overview.story_answer,
    "now": live.now_answer, "behind": go_behind, "text": whole_text, "search": search}


def problem(request: Request, sentence: str, status: int) -> Response:
    """An error page with one sentence; for scripts only the sentence."""
    if request.headers.get("sec-fetch-mode") == "cors" or request.query_params.get("json"):
        return JSONResponse({"error": sentence}, status)
    page = Page("problem.html", "That did not work", {"sentence": sentence})
    return HTMLResponse(render.html(page), status)


class Guard:
    """Requires the token and a local host name, and sets the headers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()
                                       if name.encode() not in names]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        host = request.headers.get("host", "")
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if (name if port.isdigit() else host) not in HOSTS:
            return PlainTextResponse("This site answers only to 127.0.0.1 and localhost.", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This site is read-only.", 405)
        cookie = f"rollhouse-{port or 80}"
        if self._fits(request.query_params.get("token", "")):
            rest = request.url.remove_query_params("token").query
            answer = RedirectResponse(quote(scope["path"]) + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="strict")
            return answer
        if self._fits(request.cookies.get(cookie, "")):
            return None
        return PlainTextResponse("Open the address that `reports serve` printed: it has the token.", 403)

    def _fits(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())
