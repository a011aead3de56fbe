"""A stop while something is imported: at once, and the process is not used again."""

import os
import signal
import subprocess
import sys

import pytest

from warehouse.stages import warm
from warehouse.stages.stop import StageStopped, StopRequest


def stop_while_importing(hides: type[BaseException] | None) -> None:
    with StopRequest() as stop, stop.at_once("before the engine was started"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the import went on")
        except KeyboardInterrupt:
            if hides:
                raise hides("half imported") from None


@pytest.mark.parametrize("hides", [None, ImportError, SystemExit, KeyboardInterrupt])
def test_a_stop_while_importing_ends_at_once_and_the_half_imported_process_is_not_used_again(
        monkeypatch: pytest.MonkeyPatch, hides: type[BaseException] | None) -> None:
    monkeypatch.setattr(warm, "sound", True)
    with pytest.raises(StageStopped, match=r"^Stopped because SIGTERM was received, before the engine was "
                                           r"started\. Run the same command again to continue\.$"):
        stop_while_importing(hides)
    assert not warm.sound


def test_a_signal_after_the_import_is_for_the_stage_to_heed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "sound", True)
    with StopRequest() as stop:
        with stop.at_once("before the engine was started"):
            subprocess.run([sys.executable, "-c", ""], check=True)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked()
    assert warm.sound
