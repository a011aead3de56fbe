"""What a run's config.toml may not set by itself, because the run may be somebody else's."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rollout.cli import rollout
from score.cli import score
from tests.building.runs import new_run
from train.cli import train
from warehouse.cli import cli
from warehouse.consent import is_trusted, trust_as

HARMFUL = [
    (score, "unsafe-no-sandbox = true"), (score, 'reward-file = "mine.py:f"'),
    (score, 'import-path = ["."]'), (score, 'preload = ["os"]'),
    (rollout, 'prompt-format = "mine.py:f"'),
    (rollout, 'feedback = "mine.py:f"'), (rollout, 'api-key-variable = "AWS_SECRET_ACCESS_KEY"'),
    (rollout, 'api-model = "gpt"'), (train, 'advantages = "mine.py:f"')]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_run(tmp_path_factory.mktemp("consent") / "run").root


def told(command: click.Command, run: Path, setting: str, *words: str) -> str:
    """What a command says where the run's config.toml holds a setting."""
    (run / "config.toml").write_text(f"[{command.name}]\n{setting}\n")
    result = CliRunner().invoke(command, [str(run), *words, "--time-limit", "nan"])      # which none takes
    assert result.exit_code
    return result.output


@pytest.mark.parametrize(("command", "setting"), HARMFUL, ids=[setting.split()[0] for _, setting in HARMFUL])
def test_a_config_file_alone_sets_nothing_that_could_harm(command: click.Command, setting: str, run: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "config.toml").write_text(f"[{command.name}]\n{setting}\n")
    option = f"--{setting.split()[0]}"
    result = CliRunner().invoke(command, [str(run)])
    assert result.exit_code == 1
    assert f"{run}/config.toml sets {option}, which could harm you" in result.output
    monkeypatch.setenv("ROLLHOUSE_TRUST", f"/elsewhere,{run.parent}")
    assert "could harm you" not in told(command, run, setting)


def test_a_loop_asks_for_trust_before_it_samples(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "config.toml").write_text('[score]\nreward-file = "mine.py:f"\n')
    monkeypatch.setenv("ROLLHOUSE_WARM", "off")
    result = CliRunner().invoke(cli, ["loop", str(run), "1"])
    assert result.exit_code == 1
    assert f"{run}/config.toml sets --reward-file" in result.output
    assert f"export ROLLHOUSE_TRUST={run}" in result.output and not (run / "loop.log").exists()


@pytest.mark.parametrize(("command", "setting", "words"), [
    (score, 'reward-file = "mine.py:f"', ("--reward", "exact")),
    (score, 'reward-file = "mine.py:f"', ("--reward-file", "other.py:g")),
    (score, "unsafe-no-sandbox = false", ()),
    (rollout, 'prompt-format = "chat"', ()), (rollout, 'feedback = "error"', ()),
])
def test_what_is_typed_or_harmless_needs_no_trust(command: click.Command, setting: str,
                                                  words: tuple[str, ...], run: Path) -> None:
    assert "could harm you" not in told(command, run, setting, *words)


def test_trust_is_of_whole_folders(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry, trusts in ((str(run), True), (f"{run}/", True), ("/", True), ("", False),
                          (str(run)[:-1], False)):
        monkeypatch.setenv("ROLLHOUSE_TRUST", entry)
        assert is_trusted(run) is trusts, entry


@pytest.mark.parametrize("trusted", [True, False])
def test_what_is_made_of_a_run_is_trusted_as_the_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        trusted: bool) -> None:
    run, made = tmp_path / "run", tmp_path / "run-arms"
    monkeypatch.setenv("ROLLHOUSE_TRUST", str(run if trusted else tmp_path / "other"))
    trust_as(run, made)
    assert is_trusted(made / "low") is is_trusted(run) is trusted
