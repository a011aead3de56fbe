"""The loop after an alarm: it stops, or goes back and on with smaller steps."""

import os
import subprocess
from pathlib import Path

import pytest

STAGE = """#!/bin/bash
echo "{name} $*" >> "$LOG"
"""
TRAIN = """#!/bin/bash
echo "train $*" >> "$LOG"
[[ $3 == "$EMPTY" ]] && exit 1
mkdir -p "$1/train/iteration=$3" && touch "$1/train/iteration=$3/manifest.json"
"""
WAREHOUSE = """#!/bin/bash
echo "warehouse $*" >> "$LOG"
latest=$(grep -c '^train' "$LOG")
if [[ $1 == rollback ]]; then
  mkdir -p "$2/train/iteration=$((latest - 1))" && touch "$2/train/iteration=$((latest - 1))/manifest.json"
fi
if [[ $1 == watch && " $FIRES " == *" $((latest - 1)) "* ]]; then
  echo "solving_falls since iteration $((latest - 1)): ..."
  echo "$SAID"
  exit 3
fi
exit 0
"""
BACK = "Stop here, or go back: warehouse rollback RUN --to 1"


def loop(folder: Path, *options: str, fires: str = "", said: str = BACK,
         empty: str = "") -> tuple[int, list[str]]:
    """Run the loop with stages that only write down how they are called: exit code and calls."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("rollout", "score", "train", "warehouse"):
        text = {"train": TRAIN, "warehouse": WAREHOUSE}.get(name, STAGE.format(name=name))
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    log = folder / "log"
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "LOG": str(log),
                   "ROLLHOUSE_WARM": "off",
                   "FIRES": fires, "SAID": said, "EMPTY": empty}
    code = subprocess.run(["bash", "examples/loop.sh", str(folder / "run"), "4", *options], env=environment,
                          capture_output=True, check=False).returncode
    return code, [line.replace(f"{folder}/run", "RUN") for line in log.read_text().splitlines()]


def test_the_loop_stops_where_an_alarm_fires(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, fires="2")
    assert code == 3 and calls[-1] == "warehouse watch RUN" and "train RUN --iteration 2" in calls
    assert not any("rollback" in call or "--iteration 3" in call for call in calls)


def test_the_loop_tells_train_where_to_send_numbers(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--track", "tensorboard", "--rescue")
    assert code == 0
    assert calls.count("train RUN --iteration 1 --track tensorboard --lr-after-rollback 0.5") == 1


def test_a_rescued_loop_goes_back_and_on_with_a_smaller_step(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="2")
    assert code == 0 and calls.count("warehouse rollback RUN --to 1") == 1
    assert "train RUN --iteration 3 --lr-after-rollback 0.5" in calls


def test_a_stage_without_any_gradient_is_rescued_too(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="2", empty="2")
    assert code == 0 and "train RUN --iteration 3 --lr-after-rollback 0.5" in calls
    code, calls = loop(tmp_path / "quiet", "--rescue", empty="2")
    assert code == 1 and calls[-1] == "warehouse watch RUN"


@pytest.mark.parametrize("said", ["Mend the engine first, or it happens again\n" + BACK,
                                  "Stop here: policy 1 is the newest, there is none to go back from."])
def test_what_a_smaller_step_does_not_help_ends_the_loop(tmp_path: Path, said: str) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="2", said=said)
    assert code == 3 and not any(call.startswith("warehouse rollback") for call in calls)


def test_a_run_is_rescued_three_times(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="0 1 2 3")
    assert code == 3 and calls.count("warehouse rollback RUN --to 1") == 3
