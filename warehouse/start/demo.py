"""The demo: ten iterations on generated grid tasks with the starter policy, from the package."""

import time
from collections.abc import Callable
from pathlib import Path

from warehouse.init import init_run
from warehouse.options import room_command
from warehouse.start import DATA
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.run_folder import open_warehouse

# Ten iterations see each task once. The options were chosen on tasks of seeds 11 and 7: docs/studies.md.
TASKS, HELDOUT = "synthetic:320:21", "synthetic:400:22"
QUESTIONS = ("select iteration, reward_mean, tokens_mean, truncated_share from iteration_stats "
             "where purpose = 'train' order by 1",
             "from gains(0, {iterations}, 'eval')")


def run_demo(run: Path, iterations: int, say: Callable[[str], None]) -> None:
    """Make the run, train it until `iterations` are done, and draw its report; a repeated call continues."""
    began, folder = time.monotonic(), str(run)
    if not (run / "warehouse.json").exists():
        for line in init_run(run, str(DATA / "starter"), (TASKS,), (HELDOUT,), DATA / "config.toml")[:-1]:
            say(line)
    if open_warehouse(run).facts.get("sources") != [TASKS, HELDOUT]:
        raise StageError(f"{run} has other tasks than the demo's. Name a folder that does not exist, or "
                         f"train this run: warehouse loop {shell_quote(run)} N")
    if not iterations:
        return
    _call("warehouse", "loop", folder, str(iterations), "--eval-every", str(iterations))
    _call("warehouse", "summary", folder)
    _call("reports", "build", folder)
    queries = "\n".join(f'  warehouse sql {shell_quote(run)} "{query.format(iterations=iterations)}"'
                        for query in QUESTIONS)
    say(f"\nThe demo is complete ({time.monotonic() - began:.0f} s this time).\n"
        f"warehouse: {run}; two questions to it:\n{queries}\nreport:    {run / 'report.html'}\n"
        f"browser:   reports serve {shell_quote(run)}")


def _call(name: str, *words: str) -> None:
    try:
        room_command(name).main([*words], prog_name=name, standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
