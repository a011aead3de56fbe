"""Draw the pictures of docs/viewer.md: python -m docs.draw_viewer (needs Chromium and its driver).

The runs are made up, a healthy one and one that blows up at iteration 5; the completion is one that the
starter policy sampled, of the run folder that version 0.2.0 wrote.
"""

import base64
import shutil
import tempfile
import threading
import time
from contextlib import chdir
from pathlib import Path

import uvicorn

from reports.viewer.app import make_app
from reports.viewer.serve import listen, named_sessions, open_early
from tests.browser import Browser
from tests.building.weather import build_run

ROOT = Path(__file__).parents[1]
# Of each picture: the page, the width of the window, dark, from where down and how far, in pixels.
PICTURES = {
    "runs": ("", 1000, False, 0, 350),
    "run": ("blow-up/", 1000, False, 1780, 560),
    "iteration": ("blow-up/iteration?iteration=7", 1000, True, 0, 960),
    "group": ("blow-up/group?iteration=4&group=4/train/task-003/0&a=0&b=1", 1000, False, 380, 700),
    "completion": ("run/completion?name={name}&colour=logprob", 1000, False, 0, 720),
    "find": ("blow-up/find?where=NOT+correct+AND+reward+>+0&order=reward+DESC", 400, True, 0, 760),
}


def make_runs(folder: Path) -> list[Path]:
    """The runs of the pictures."""
    for name, shape in (("healthy", "healthy"), ("blow-up", "blow-up")):
        build_run(folder / name, shape=shape, iterations=12, num_tasks=24, evals=(0, 5, 11))
    shutil.copytree(ROOT / "tests" / "fixtures" / "run-0.2.0", folder / "run")
    shutil.copytree(ROOT / "examples" / "starter" / "model", folder / "run" / "model")
    return [folder / name for name in ("blow-up", "healthy", "run")]


def draw(output: Path) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        sessions = named_sessions([str(path) for path in make_runs(Path())])
        for session in sessions:
            open_early(session)
        listener = listen(0)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server = uvicorn.Server(uvicorn.Config(make_app(sessions, "token"), log_level="warning"))
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        [row] = sessions[2].view().asking().rows(
            "SELECT task_id, sample_index FROM train_samples "
            "ORDER BY num_trainable_tokens DESC, task_id, sample_index LIMIT 1")
        name = f"0/{row['task_id']}/{row['sample_index']}"
        for picture, (page, width, dark, top, tall) in PICTURES.items():
            with Browser(dark=dark, width=max(width, 500), height=1600) as window:
                take(window, address, page.format(name=name), width, (top, tall),
                     output / f"viewer-{picture}.png")
        server.should_exit = True


def take(window: Browser, address: str, page: str, width: int, part: tuple[int, int], path: Path) -> None:
    """A picture of a part of a page, once everything on it is drawn."""
    def command(name: str, **options: object) -> dict[str, str]:
        return window._command("POST", "/goog/cdp/execute", {"cmd": name, "params": options})

    command("Emulation.setDeviceMetricsOverride", width=width, height=1600, deviceScaleFactor=1, mobile=False)
    window._command("POST", "/url", {"url": f"{address}?token=token"})
    window._command("POST", "/url", {"url": address + page})
    while window.script("return !!document.querySelector('[aria-busy], [data-waiting]') || "
                        "[...document.querySelectorAll('.slot')].some((one) => one.offsetTop < 2400 && "
                        "one.querySelector('.empty')?.textContent === '…')"):
        time.sleep(0.1)
    clip = {"x": 0, "y": part[0], "width": width, "height": part[1], "scale": 1}
    told = command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(told["data"]))


if __name__ == "__main__":
    draw(ROOT / "docs")
