"""Slow tests say why, --skips-fail fails what could not run, and one test at a time has the GPU."""

import fcntl
import gc
import os
import re
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# A forked child must not collect what earlier tests left: a DuckDB connection dies of its missing threads.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
# A killed process loses nothing that it wrote; only a machine that stops would, and no test stops one.
os.fsync = lambda _descriptor: None
# Every run of the tests tries the same examples, in whatever time a busy machine takes for them.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips-fail", metavar="REGEX", default=None,
                     help="A skipped test fails unless its reason matches this.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("slow"):
            assert mark.args, f"{item.nodeid} is marked slow without a reason"
    # What takes longest begins first, so that no process is left alone with it at the end.
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Who takes much of a GPU, or measures what is free of it, has it for itself."""
    takes_much = item.get_closest_marker("engine") or item.get_closest_marker("gpu")
    if not takes_much or not Path("/dev/nvidiactl").exists():
        return (yield)
    with Path(tempfile.gettempdir(), f"rollhouse-tests-gpu-{os.getuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Make of a skip a failure, with --skips-fail and a reason that it does not except."""
    excepted = config.getoption("--skips-fail")
    if report.skipped and excepted is not None and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not re.search(excepted, reason):
            report.outcome, report.longrepr = "failed", f"{report.nodeid} was not run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
        item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
        collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report, collector.config)       # a whole file, by `importorskip`
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say for want of what how many tests were not run."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in
                      terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"not run: {count} x {reason}")
