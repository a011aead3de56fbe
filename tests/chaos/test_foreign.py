"""Kill -9 at the calls that change a file of a rollout from a model behind an API."""

import shutil
from pathlib import Path

import pytest

from rollout.cli import default_options
from rollout.engines.engine import Sampling
from rollout.run import run_rollout
from tests.building.chatting import ChatService
from tests.building.runs import without_waiting
from tests.building.sound import check_run
from tests.chaos.test_carry import dies
from tests.rollout.test_api_model import new_run, said
from warehouse.store.run_folder import open_warehouse


@pytest.mark.parametrize("every", [
    13, pytest.param(1, marks=pytest.mark.slow("a hundred rollouts are killed and finished"))])
def test_killed_anywhere_it_goes_on_and_has_every_answer(
        tmp_path: Path, every: int) -> None:
    service, number, kills = ChatService(), 1, 0
    whole = new_run(tmp_path / "whole" / "run")
    options = default_options(whole.root).replace(
        sampling=Sampling(max_tokens=64), group_size=3, part_size=4, prompt_format="compact",
        endpoint=(service.url,), model="wise-1", distil=True, spill_seconds=0.0)
    fresh = Path(shutil.copytree(whole.root, tmp_path / "fresh"))
    with without_waiting():
        list(run_rollout(options))
        while True:
            folder = tmp_path / f"killed-{number}"
            run = Path(shutil.copytree(fresh, folder / "run"))
            again = options.replace(run=run)
            if not dies(lambda again=again: list(run_rollout(again)) and None, folder, number):
                break
            opened, before = open_warehouse(run), len(service.asked)
            assert check_run(opened).problems == []
            list(run_rollout(again))
            assert said(opened) == said(whole) and check_run(opened).problems == []
            assert len(service.asked) - before <= 12
            number, kills = number + every, kills + 1
    service.stop()
    assert kills > 3
