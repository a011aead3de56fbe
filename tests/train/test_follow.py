"""`train --follow`: loads while others work, and then trains as `train` does afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import train.follow
import train.start
from tests.building.runs import copy_run
from tests.building.sampled import run_train


@pytest.fixture
def worker():
    """A process that takes the place of those that make the rows."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def follow(warehouse, worker, meanwhile, *arguments):
    """The command, and what happens while it waits; the worker ends with that."""
    def work():
        try:
            meanwhile()
        finally:
            worker.kill()
    with ThreadPoolExecutor() as aside:
        worked = aside.submit(work)
        done = run_train(warehouse, "--iteration", "1", "--follow", str(worker.pid), *arguments)
        worked.result()
    return done


def wait_until(true):
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within half a minute")


@pytest.fixture
def loaded(monkeypatch):
    """What is loaded, in order: bases and policies, and whether the memory holds another policy then."""
    order, weights = [], []
    def noting(name, load):
        def noted(*arguments, **options):
            beside = any(weight() is not None for weight in weights)
            order.append(name + (" of what was loaded" if options.get("loaded") else "")
                         + (" beside another" if beside else ""))
            made = load(*arguments, **options)
            weights.extend(map(weakref.ref, made.model.parameters() if name == "load_lora" else ()))
            return made
        return noted
    for module, name in ((train.follow, "load_base"), (train.start, "load_lora")):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    return order


def adapter(warehouse):
    return (warehouse.policy_dir(2) / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def undisturbed(stale, tmp_path_factory):
    warehouse = copy_run(stale, tmp_path_factory.mktemp("runs") / "demo")
    assert run_train(warehouse, "--iteration", "1").exit_code == 0
    return warehouse


def aside(warehouse, *names):
    """Take files and folders of a run away; what puts them back."""
    for name in names:
        shutil.move(warehouse.root / name, warehouse.root.parent / name.replace("/", "-"))
    return lambda: [shutil.move(warehouse.root.parent / name.replace("/", "-"), warehouse.root / name)
                    for name in names]


# The last entries of the log: with them the rollout and the score of iteration 1 are complete.
SAMPLED, ROWS, POLICY = "_log/00000009.json", "_log/00000010.json", "policies/1"


@pytest.mark.parametrize("dtype", [(), ("--dtype", "auto")], ids=["named", "of the rows"])
def test_what_can_be_loaded_is_and_the_policy_is_that_of_a_train_afterwards(
        stale_run, undisturbed, worker, loaded, dtype):
    missing = aside(stale_run, ROWS, POLICY)

    def work():
        wait_until(lambda: loaded == ["load_base", "load_lora of what was loaded"])
        missing()
    done = follow(stale_run, worker, work, *dtype)
    assert done.exit_code == 0, done.output
    assert adapter(stale_run) == adapter(undisturbed) and len(loaded) == 2
    assert stale_run.policy(2)["settings"] == undisturbed.policy(2)["settings"]


def test_nothing_is_put_on_a_device_while_the_rows_are_sampled_or_without_room(
        stale_run, worker, loaded, monkeypatch):
    rows, complete, asked, room = aside(stale_run, ROWS), aside(stale_run, SAMPLED), [], []
    monkeypatch.setattr(train.follow, "has_room", lambda *_: asked.append(loaded[:]) or bool(room))
    looks = []
    monkeypatch.setattr(train.follow.Ahead, "go_on", lambda self, go_on=train.follow.Ahead.go_on: (
        go_on(self), looks.append(1)))

    def work():
        wait_until(lambda: len(looks) > 3)
        assert loaded == ["load_base"] and not asked
        complete()
        wait_until(lambda: len(asked) > 3)
        assert loaded == ["load_base"]
        room.append(True)
        wait_until(lambda: len(loaded) == 2)
        rows()
    done = follow(stale_run, worker, work)
    assert done.exit_code == 0 and loaded == ["load_base", "load_lora of what was loaded"], done.output


@pytest.mark.parametrize(("free", "is_shared", "has_room"), [(13, True, True), (11, True, False),
                                                             (13, False, False)])
def test_a_gpu_has_room_where_three_times_the_weights_are_free_and_nobody_counts_on_them(
        monkeypatch, free, is_shared, has_room):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 100))
    one_weight = torch.nn.Linear(1, 1, bias=False)      # of four bytes
    assert train.follow.has_room(torch.device("cuda"), one_weight, is_shared) is has_room


@pytest.mark.parametrize("what", ["dtype", "shape of the adapter"])
def test_what_does_not_fit_the_rows_after_all_is_loaded_anew(stale_run, undisturbed, worker, loaded, what,
                                                             monkeypatch):
    rows, load_policy = aside(stale_run, ROWS), train.start.load_policy

    def load_another(warehouse, parent, settings, *rest):
        if len(loaded) == 1:
            settings = settings.replace(lora_alpha=4.0)
        return load_policy(warehouse, parent, settings, *rest)

    if what == "dtype":
        go_on = train.follow.Ahead.go_on
        monkeypatch.setattr(train.follow.Ahead, "go_on", lambda self: (
            setattr(self, "settings", self.settings.replace(dtype="bfloat16")), go_on(self)))
    else:
        monkeypatch.setattr(train.follow, "load_policy", load_another)

    def work():
        wait_until(lambda: len(loaded) == 2)
        rows()
    assert follow(stale_run, worker, work).exit_code == 0
    assert adapter(stale_run) == adapter(undisturbed)
    assert loaded == ["load_base", "load_lora of what was loaded", "load_lora"]


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_the_errors_are_those_of_a_train_afterwards(stale_run, worker, loaded, file):
    aside(stale_run, ROWS)
    (stale_run.root / "model" / file).unlink()
    (stale_run.root / "model" / file).write_text("")
    done = follow(stale_run, worker, lambda: wait_until(lambda: loaded))
    expected = run_train(stale_run, "--iteration", "1")
    assert (done.exit_code, done.output) == (expected.exit_code, expected.output) and done.exit_code == 1
    assert "of iteration 1 are not scored." in done.output


def test_what_fails_on_a_gpu_leaves_nothing_there(stale_run, undisturbed, worker, monkeypatch):
    rows, held, given_back, load_lora = aside(stale_run, ROWS), [], [], train.start.load_lora

    def load(*arguments, **options):
        policy = load_lora(*arguments, **options)
        if not held:
            held.extend(map(weakref.ref, policy.model.parameters()))
            raise torch.OutOfMemoryError("of the GPU")
        return policy
    monkeypatch.setattr(train.start, "load_lora", load)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(
        [weight() for weight in held if weight() is not None]))

    def work():
        wait_until(lambda: held)
        wait_until(lambda: given_back)
        rows()
    done = follow(stale_run, worker, work)
    assert done.exit_code == 0 and adapter(stale_run) == adapter(undisturbed), done.output
    assert given_back[0] == []


def test_one_iteration_is_followed_and_a_process_that_is_gone_has_ended(stale_run, undisturbed):
    done = run_train(stale_run, "--follow", "1")
    assert done.exit_code == 1 and "Name it with --iteration." in done.output
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = run_train(stale_run, "--iteration", "1", "--follow", str(ended.pid), "--follow", str(10 ** 12))
    assert done.exit_code == 0 and adapter(stale_run) == adapter(undisturbed)


def test_told_to_stop_while_it_waits_it_stops_and_writes_nothing(stale_run, worker, loaded):
    aside(stale_run, ROWS)
    before = sorted(stale_run.root.rglob("*"))

    def stop():
        wait_until(lambda: len(loaded) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
    done = follow(stale_run, worker, stop)
    assert done.exit_code == 75 and "before the rows of iteration 1 were there" in done.output, done.output
    assert sorted(stale_run.root.rglob("*")) == before


def test_told_to_stop_while_torch_loads_it_is_told_to_stop(stale_run, worker):
    code = ("import os, signal, sys\n"
            "class Torch:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'torch':\n"
            "            os.kill(os.getpid(), signal.SIGTERM)\n"
            "sys.meta_path.insert(0, Torch())\n"
            "from train.cli import train\n"
            "train()\n")
    done = subprocess.run([sys.executable, "-c", code, stale_run.root, "--iteration", "1", "--follow",
                           str(worker.pid)], capture_output=True, text=True)
    assert done.returncode == 75 and "before the rows of iteration 1 were there" in done.stderr, done.stderr


def test_the_time_limit_is_of_the_training(stale_run, worker):
    done = follow(stale_run, worker, lambda: time.sleep(0.5), "--time-limit", "0")
    assert done.exit_code == 75 and "before the rows" not in done.output, done.output
    assert "the time limit of 0 s is over" in done.output
