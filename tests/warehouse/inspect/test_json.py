"""What commands say to programs: documented keys, one object per line."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.weather import build_run
from warehouse.cli import cli

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "json.md").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_run(tmp_path_factory.mktemp("json") / "run", shape="blow-up", iterations=8, evals=(),
                         num_tasks=4, group_size=8).root)


def said(*words: str) -> tuple[dict, int]:
    done = CliRunner().invoke(cli, words)
    assert len(done.stdout.splitlines()) == 1, done.output
    facts = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return facts, done.exit_code


def test_summary_says_what_is_due_and_has_a_row_per_iteration(run: str) -> None:
    facts, code = said("summary", run, "--json")
    assert code == 0 and facts["next"] == {"stage": "rollout", "iteration": 8, "purpose": "train"}
    assert facts["policy"] == 8 and [row["iteration"] for row in facts["iterations"]] == list(range(8))
    row, _ = said("summary", run, "--iteration", "3", "--json")
    assert row == facts["iterations"][3]


def test_watch_says_which_alarms_fired_and_where_to_go_back_to(run: str) -> None:
    facts, code = said("watch", run, "--json")
    assert code == 3 and facts["fired"] and facts["back"] is not None
    words = CliRunner().invoke(cli, ["watch", run]).output
    assert f"--to {facts['back']}" in words
    assert all(alarm["signal"] in words for alarm in facts["alarms"] if alarm["fired"])


def test_check_counts_and_lists(run: str) -> None:
    facts, code = said("check", run, "--json")
    assert code == 0 and facts["problems"] == [] and facts["num_parts"] > 20


def test_every_key_is_documented(run: str) -> None:
    keys = re.findall(r"^(`[^|]*)\|", PAGE, flags=re.MULTILINE)
    known = {*re.findall(r"`(\w+)`", " ".join(keys))}
    for words in (["summary", run], ["watch", run], ["check", run]):
        facts, _ = said(*words, "--json")
        assert facts.keys() <= known, facts.keys() - known
        for row in facts.get("alarms", [])[:1]:
            assert row.keys() <= known, row.keys() - known
