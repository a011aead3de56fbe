"""Listen on this machine only, and print the address with its token."""

import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click

from reports.viewer.session import Session
from warehouse.objects.bucket import is_address
from warehouse.store.errors import StageError


def serve_runs(runs: Sequence[str], port: int, at: str = "") -> None:
    """Serve the runs until Ctrl-C; `at` is the page that the printed address opens."""
    try:
        import uvicorn

        from reports.viewer.app import make_app
    except ImportError as error:
        raise StageError(f"The viewer needs another package ({error}). Install it: "
                         "pip install 'rollhouse[viewer]'") from error
    sessions = named_sessions(runs)
    listener = listen(port)
    token = secrets.token_urlsafe(24)
    place = f"{quote(sessions[0].name)}/{at.lstrip('/')}" if at or len(sessions) == 1 else ""
    joint = "&" if "?" in place else "?"
    port = listener.getsockname()[1]
    click.echo(f"http://127.0.0.1:{port}/{place}{joint}token={token}")
    click.echo("Ctrl-C ends it.", err=True)
    for session in sessions:      # so that the first page need not wait
        threading.Thread(target=open_early, args=(session,), daemon=True).start()
    config = uvicorn.Config(make_app(sessions, token), log_level="warning", access_log=False,
                            timeout_graceful_shutdown=1, server_header=False)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def named_sessions(runs: Sequence[str]) -> list[Session]:
    """A session per run, named after its folder; equal names get a number."""
    sessions: list[Session] = []
    for run in runs:
        name = run.rstrip("/").rpartition("/")[2] if is_address(run) else Path(run).resolve().name
        taken = {session.name for session in sessions} | {"static", "compare"}
        names = [name, *(f"{name or 'run'}-{number}" for number in range(2, len(runs) + 3))]
        sessions.append(Session(run, next(each for each in names if each and each not in taken)))
    return sessions


def open_early(session: Session) -> None:
    """Open a run before its page is requested; its page shows any error."""
    from reports.viewer.overview import keep_line, story_of
    try:
        keep_line(session)
        story_of(session.view())
    except StageError as error:
        click.echo(f"warning: {error}", err=True)


def listen(port: int) -> socket.socket:
    """A socket that only this machine reaches; StageError if the port is taken."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise StageError(f"Port {port} is taken ({error.strerror}). Name another with --port, or leave "
                         "it out; `ss -ltnp` shows which process uses it.") from error
