"""What the loop calls, and in which order: after an alarm, ahead, with its options."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

STAGE = """#!/bin/bash
echo "{name} $*" >> "$LOG"
"""
TRAIN = """#!/bin/bash
while [[ -e /proc/${@: -1} ]]; do sleep 0.01; done
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


def make_stages(folder: Path, fires: str = "", said: str = "", empty: str = "", **stages: str
                ) -> dict[str, str]:
    """The variables under which the loop calls stages that only write down how they are called."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run/warehouse.json").touch()
    for name, text in {"rollout": STAGE.format(name="rollout"), "score": STAGE.format(name="score"),
                       "train": TRAIN, "warehouse": WAREHOUSE, **stages}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "LOG": str(folder / "log"),
            "ROLLHOUSE_WARM": "off", "FIRES": fires, "SAID": said, "EMPTY": empty}


def loop(folder: Path, *options: str, fires: str = "", said: str = BACK,
         empty: str = "", variables: Mapping[str, str] = MappingProxyType({}), **stages: str
         ) -> tuple[int, list[str]]:
    """Run the loop with such stages: exit code and calls."""
    environment, log = {**make_stages(folder, fires, said, empty, **stages), **variables}, folder / "log"
    with (folder / "printed").open("w") as printed:
        code = subprocess.run(["bash", "examples/loop.sh", str(folder / "run"), "4", *options], timeout=50,
                              env=environment, stdout=printed, stderr=printed, check=False).returncode
    calls = [line.replace(f"{folder}/run", "RUN") for line in log.read_text().splitlines()]
    taken_for_granted = " --spill-seconds 1| --follow [0-9]+$| --gpu-memory-utilization 0.4"
    return code, [re.sub(taken_for_granted, "", call) for call in calls
                  if not call.startswith("warehouse summary")]        # which is written meanwhile


def test_the_loop_stops_where_an_alarm_fires(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, fires="2")
    assert code == 3 and calls[-1] == "warehouse watch RUN --since 2" and "train RUN --iteration 2" in calls
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
    assert code == 1 and calls[-1] == "warehouse watch RUN --since 2"


@pytest.mark.parametrize("said", ["Mend the engine first, or it happens again\n" + BACK,
                                  "Stop here: policy 1 is the newest, there is none to go back from."])
def test_what_a_smaller_step_does_not_help_ends_the_loop(tmp_path: Path, said: str) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="2", said=said)
    assert code == 3 and not any(call.startswith("warehouse rollback") for call in calls)


def test_ahead_the_engine_leaves_memory_to_the_training_beside_it(tmp_path: Path) -> None:
    def given(folder: Path, *options: str) -> int:
        assert loop(folder, *options)[0] == 0
        return (folder / "log").read_text().count("--gpu-memory-utilization 0.4")
    assert given(tmp_path / "ahead", "--ahead") == 4 and given(tmp_path / "in turns") == 0
    for name, text in (("told", "[rollout]\ngpu-memory-utilization = 0.35\n"),
                       ("dotted", "rollout.gpu_memory_utilization = 0.35\n"),
                       ("tab", "[rollout]\n\t'gpu-memory-utilization' = 0.35\n")):
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / "config.toml").write_text(text)
        assert given(tmp_path / name, "--ahead") == 0
    (tmp_path / "comment" / "run").mkdir(parents=True)
    (tmp_path / "comment" / "run" / "config.toml").write_text("[rollout]\n# gpu-memory-utilization = 0.35\n")
    assert given(tmp_path / "comment", "--ahead") == 4


def test_each_iteration_is_watched_once(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="1")
    assert code == 0 and [call for call in calls if call.startswith("warehouse watch")] == [
        "warehouse watch RUN", *(f"warehouse watch RUN --since {i}" for i in (1, 2, 3))]


def test_a_run_is_rescued_three_times(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--rescue", fires="0 1 2 3")
    assert code == 3 and calls.count("warehouse rollback RUN --to 1") == 3


def test_ahead_an_iteration_is_sampled_by_the_policy_before_while_that_is_trained(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--ahead")
    assert code == 0
    assert [call for call in calls if call.startswith("rollout")] == [
        "rollout RUN --iteration 0",
        *(f"rollout RUN --iteration {i} --policy-version {i - 1}" for i in (1, 2, 3))]
    assert [call for call in calls if call.startswith("train")] == [
        f"train RUN --iteration {i}" for i in range(4)]
    for i in range(3):
        begun = calls.index(f"rollout RUN --iteration {i + 1} --policy-version {i}")
        assert begun > calls.index(f"train RUN --iteration {i - 1}") if i else True
    assert sorted(call for call in calls if call.startswith("score")) == [
        f"score RUN --iteration {i}" for i in range(4)]


@pytest.mark.parametrize("stage", ["rollout", "score", "train"])
def test_an_alarm_ends_what_is_ahead(tmp_path: Path, stage: str) -> None:
    sleeping = f'[[ $3 == 3 ]] && touch $LOG-begun && exec -a {tmp_path}/asleep sleep 60\n'
    slow = TRAIN.replace("\n[[", "\n[[ $3 == 2 ]] && sleep 0.5\n[[", 1)
    stages = {"train": slow, stage: STAGE.format(name=stage) + sleeping + "exit 0\n"}
    if stage == "train":        # which stands by
        stages[stage] = slow.replace("while", f"{sleeping}while", 1)
    code, _ = loop(tmp_path, "--ahead", fires="2", **stages)
    assert code == 3 and (tmp_path / "log-begun").exists()
    assert subprocess.run(["pgrep", "-f", f"{tmp_path}/asleep"], capture_output=True).stdout == b""


def test_a_rollout_ahead_that_fails_ends_the_loop_with_its_words(tmp_path: Path) -> None:
    failing = STAGE.format(name="rollout") + '[[ $3 == 2 ]] && echo "Out of luck." >&2 && exit 1\nexit 0\n'
    code, calls = loop(tmp_path, "--ahead", rollout=failing)
    assert code == 1 and "train RUN --iteration 1" in calls and "train RUN --iteration 2" not in calls
    assert "Out of luck." in (tmp_path / "printed").read_text()


def test_a_score_that_fails_ends_the_loop_and_what_is_ahead(tmp_path: Path) -> None:
    failing = STAGE.format(name="score") + '[[ $3 == 1 ]] && echo "No lanes." >&2 && exit 1\nexit 0\n'
    slow = STAGE.format(name="rollout") + f'[[ $3 == 2 ]] && exec -a {tmp_path}/asleep sleep 60\nexit 0\n'
    code, calls = loop(tmp_path, "--ahead", score=failing, rollout=slow)
    assert code == 1 and "train RUN --iteration 0" in calls and "train RUN --iteration 1" not in calls
    assert "No lanes." in (tmp_path / "printed").read_text()
    assert subprocess.run(["pgrep", "-f", f"{tmp_path}/asleep"], capture_output=True).stdout == b""


def wait_for(true: Callable[[], object]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within half a minute")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_that_is_told_to_stop_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    asleep = f"exec -a {tmp_path}/asleep sleep 60\n"
    stages = make_stages(tmp_path, **{name: STAGE.format(name=name) + asleep
                                      for name in ("rollout", "score", "train")})
    with subprocess.Popen(["bash", "examples/loop.sh", str(tmp_path / "run"), "4"], env=stages,
                          start_new_session=True) as process:
        wait_for(lambda: subprocess.run(["pgrep", "-f", f"{tmp_path}/asleep"],
                                        capture_output=True).stdout.count(b"\n") == 3)
        process.send_signal(number)
        assert process.wait(30) in (-number, 128 + number)
    assert subprocess.run(["pgrep", "-f", f"{tmp_path}/asleep"], capture_output=True).stdout == b""


def test_a_training_that_stands_by_has_ended_before_its_turn_does(tmp_path: Path) -> None:
    """Where it runs warm, its process ends a moment after the one that the loop kills."""
    standing_by = """#!/bin/bash
{ echo > "$LOG-stands-by"
  while sleep 0.2; do
    [[ -e /proc/$1 ]] || { echo "has its turn" >> "$LOG"; exit; }
    [[ -e /proc/$2 ]] || exit
  done } &
exec sleep 60
""".replace("/$1", "/${@: -1}").replace("/$2", "/$$")
    stages = make_stages(tmp_path, train=standing_by, rollout="#!/bin/bash\ntrap 'sleep 3; exit' TERM\n"
                         "while sleep 0.1; do :; done\n")
    with subprocess.Popen(["bash", "examples/loop.sh", str(tmp_path / "run"), "4"], env=stages) as process:
        wait_for(lambda: (tmp_path / "log-stands-by").exists())
        process.terminate()
        process.wait(30)
    assert "has its turn" not in (tmp_path / "log").read_text()


def test_told_to_stop_while_it_starts_a_training_the_loop_ends_the_others(tmp_path: Path) -> None:
    asleep = f"exec -a {tmp_path}/asleep sleep 60\n"
    stages = make_stages(tmp_path, rollout=STAGE.format(name="rollout") + asleep)
    (tmp_path / "env").write_text('disown() { builtin disown "$@"; kill -TERM $$; }\n')
    done = subprocess.run(["bash", "examples/loop.sh", str(tmp_path / "run"), "4"], timeout=50, check=False,
                          env=stages | {"BASH_ENV": str(tmp_path / "env")}, capture_output=True, text=True)
    assert done.returncode in (-15, 143) and done.stderr == "", done.stderr
    assert subprocess.run(["pgrep", "-f", f"{tmp_path}/asleep"], capture_output=True).stdout == b""


def test_a_rescue_goes_on_where_all_that_it_ends_has_just_ended(tmp_path: Path) -> None:
    (tmp_path / "env").write_text('jobs() { echo 999999999; }\n')
    code, calls = loop(tmp_path, "--rescue", fires="2", variables={"BASH_ENV": str(tmp_path / "env")})
    assert code == 0 and "train RUN --iteration 3 --lr-after-rollback 0.5" in calls


def test_a_training_stands_by_while_its_rows_are_sampled_and_waits_for_its_turn(tmp_path: Path) -> None:
    waiting = STAGE.format(name="rollout") + 'until [[ -e $LOG-by-$3 ]]; do sleep 0.01; done\n'
    code, calls = loop(tmp_path, rollout=waiting, train=TRAIN.replace("while", "touch $LOG-by-$3\nwhile"))
    assert code == 0 and [call for call in calls if call.split()[0] in ("rollout", "train", "warehouse")] == [
        call for i in range(4) for call in (f"rollout RUN --iteration {i}", f"train RUN --iteration {i}",
                                            f"warehouse watch RUN{f' --since {i}' if i else ''}")]


def beside_the_watch() -> dict[str, str]:
    """Stages whose watch ends only once the iteration after the next is sampled, where that is to come."""
    rollout = STAGE.format(name="rollout") + 'echo "sampled $3"\necho $$ > $LOG-rollout-$3\n'
    train = TRAIN + """echo "trained $3"
ahead=$LOG-rollout-$(($3 + 1))      # until that is over, and the loop has heard of it
until [[ $3 == 3 || ( -s $ahead && ! -e /proc/$(<$ahead) ) ]]; do sleep 0.01; done
"""
    watch = """if [[ $1 == watch ]] && ((latest < 3)); then
  until [[ -e $LOG-rollout-$((latest + 1)) ]]; do sleep 0.01; done
fi
if [[ $1 == watch """
    return {"rollout": rollout, "train": train, "warehouse": WAREHOUSE.replace("if [[ $1 == watch ", watch)}


def test_ahead_a_new_policy_samples_before_the_watch_is_over_and_all_is_told_in_order(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--ahead", **beside_the_watch())
    assert code == 0 and sum(call.startswith("warehouse watch") for call in calls) == 4
    assert (tmp_path / "printed").read_text().splitlines() == [
        line for i in range(4) for line in (f"sampled {i}", f"trained {i}")]


def test_after_a_rescue_ahead_nothing_is_sampled_by_the_policy_that_is_gone(tmp_path: Path) -> None:
    code, calls = loop(tmp_path, "--ahead", "--rescue", fires="1", **beside_the_watch())
    back = calls.index("warehouse rollback RUN --to 1")
    assert code == 0 and "rollout RUN --iteration 3 --policy-version 2" in calls[:back]
    assert [call for call in calls[back:] if call.startswith("rollout")] == [
        "rollout RUN --iteration 2", "rollout RUN --iteration 3 --policy-version 2"]


def test_a_training_that_stands_by_goes_on_where_the_loop_is_killed(tmp_path: Path) -> None:
    stages = make_stages(tmp_path, train=TRAIN.replace("while", "touch $LOG-stands-by\nwhile", 1),
                         rollout=STAGE.format(name="rollout") + "exec sleep 5\n")
    with subprocess.Popen(["bash", "examples/loop.sh", str(tmp_path / "run"), "4"], env=stages) as process:
        wait_for(lambda: (tmp_path / "log-stands-by").exists())
        process.kill()
    wait_for(lambda: "train" in (tmp_path / "log").read_text())


def test_a_loop_that_is_killed_as_it_names_its_folder_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "made").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/warehouse.json").touch()
    (tmp_path / "bin/mktemp").write_text('#!/bin/sh\nPATH=/usr/bin:/bin mktemp "$@"\nkill -TERM $PPID\n')
    (tmp_path / "bin/mktemp").chmod(0o755)
    ended = subprocess.run(
        ["bash", "examples/loop.sh", str(tmp_path / "run"), "1"], cwd=Path(__file__).parents[2], check=False,
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "made"),
             "ROLLHOUSE_WARM": "off"})
    assert ended.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert not list((tmp_path / "made").iterdir())


def test_what_a_killed_loop_leaves_goes_with_the_folder_of_what_keeps_it_warm(tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    stages = make_stages(tmp_path, rollout=STAGE.format(name="rollout") + "exec sleep 5\n")
    stages |= {"ROLLHOUSE_WARM": str(tmp_path / "warm/0"), "TMPDIR": str(tmp_path / "not")}
    with subprocess.Popen(["bash", "examples/loop.sh", str(tmp_path / "run"), "4"], env=stages) as process:
        wait_for(lambda: list((tmp_path / "warm").iterdir()))
        process.kill()


@pytest.mark.parametrize(("words", "code", "told"), [
    (["run", "4", "--aheda"], 2, "usage: "), (["run", "4", "--track"], 2, "usage: "),
    (["run", "four"], 2, "usage: "), (["nun", "4"], 1, "no run\n")])
def test_what_is_mistyped_is_told_once_and_before_imports(tmp_path: Path, words: list[str], code: int,
                                                          told: str) -> None:
    warehouse = """#!/bin/bash
[[ $1 == summary ]] && { echo "no run" >&2; exit 1; }
echo "importing" >&2
"""
    stages = make_stages(tmp_path, warehouse=warehouse) | {"ROLLHOUSE_WARM": ""}
    done = subprocess.run(["bash", "examples/loop.sh", str(tmp_path / words[0]), *words[1:]], env=stages,
                          capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.startswith(told) and done.stderr.count("\n") == 1
    assert not (tmp_path / "log").exists()
