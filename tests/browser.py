"""A headless Chromium driven over the WebDriver protocol, without any further package."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

MISSING = "needs Chromium and its driver (apt-get install chromium chromium-driver)"


def is_there() -> bool:
    """True if both Chromium and chromedriver are installed."""
    return bool(shutil.which("chromedriver") and (shutil.which("chromium") or shutil.which("google-chrome")))


class Browser:
    """One headless window; `script` runs JavaScript in the page, `errors` are its console's."""

    def __init__(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        started = None
        for _ in range(3):                   # it ends if another takes the port that it chose
            self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True,
                                            stderr=subprocess.DEVNULL)
            started = next((line for line in self._driver.stdout or () if "successfully on" in line), None)
            if started:
                break
            self._driver.wait()
        assert started, "chromedriver does not start"
        self._address = f"http://127.0.0.1:{started.split()[-1].rstrip('.')}"
        scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        options = {"binary": shutil.which("chromium") or shutil.which("google-chrome"),
                   "args": ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *scheme,
                            f"--window-size={width},{height}", "--disable-dev-shm-usage"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self._session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None,
                 _trace: TracebackType | None) -> None:
        try:
            self._send("DELETE", f"/session/{self._session}")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=120)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is loaded."""
        self._command("POST", "/url", {"url": path.resolve().as_uri()})

    def script(self, text: str, *arguments: Any) -> Any:
        """Run JavaScript; what it returns comes back."""
        return self._command("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def move_to(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        moves = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y), "origin": "viewport"}]
        self._command("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves,
                                                        "parameters": {"pointerType": "mouse"}}]})

    def errors(self) -> list[str]:
        """Messages in the console, security policy violations and failed requests among them."""
        return [entry["message"] for entry in self._command("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self._command("GET", "/screenshot")))

    def _command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._send(method, f"/session/{self._session}{path}", body)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(self._address + path, method=method,
                                         data=json.dumps(body).encode() if body is not None else None,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from error
