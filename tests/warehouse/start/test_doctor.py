"""The doctor names what a stage lacks with its command; `init` refuses what cannot be trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rollout.doctor
import train.doctor
from warehouse.cli import cli
from warehouse.start import DATA, doctor
from warehouse.start.finding import Finding
from warehouse.store.errors import StageError

STARTER = DATA / "starter"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def model_with(folder: Path, **changes: Any) -> Path:
    """The starter with another config."""
    shutil.copytree(STARTER, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_all_three_stages_work_where_the_tests_run() -> None:
    result = invoke("doctor", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and {name: each["able"] for name, each in told.items()} == {
        "rollout": True, "score": True, "train": True}
    assert told["rollout"]["engine"].startswith("vllm") and told["score"]["tier"] in ("A", "B", "C")


def test_what_is_missing_is_named_with_the_command_that_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise StageError("vLLM is not installed.")
    monkeypatch.setattr(rollout.doctor, "engine_version", missing)
    result = invoke("doctor", "rollout")
    assert result.exit_code == 1 and "pip install" in result.output
    told = json.loads(invoke("doctor", "rollout", "--json").stdout)["rollout"]
    assert not told["able"] and (Path(told["command"].split()[-1]).is_file() or "[gpu]" in told["command"])


def test_a_torchvision_for_another_torch_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "train.model":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *more)
    monkeypatch.setattr(builtins, "__import__", without)
    found = train.doctor.examine()
    assert not found.able and found.command == train.doctor.STRANGERS


def test_init_refuses_a_model_that_cannot_be_trained_and_makes_no_run(tmp_path: Path) -> None:
    odd = model_with(tmp_path / "odd", model_type="odd", architectures=["OddForCausalLM"])
    result = invoke("init", tmp_path / "run", "--model", odd, "--tasks", "synthetic:2")
    assert result.exit_code == 1 and "cannot be trained" in result.output
    assert not (tmp_path / "run").exists()


def test_init_says_what_the_engine_does_not_know(tmp_path: Path) -> None:
    """No vLLM has an architecture of that name; transformers goes by the type."""
    odd = model_with(tmp_path / "odd", model_type="olmo", architectures=["OddForCausalLM"])
    told = dict(doctor.examine_model(str(odd)))
    assert told["train"].able and not told["rollout"].able
    lines = doctor.check_new_model(str(odd))
    assert any(line.startswith("rollout: vLLM cannot serve it") for line in lines)


@pytest.mark.parametrize(("changes", "asked"), [
    ({}, False), ({"quantization_config": {"quant_method": "fp8"}}, True),
    ({"rope_parameters": {"rope_type": "dynamic"}}, True), ({"model_type": "lfm2"}, True)])
def test_init_tries_a_copy_of_what_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                changes: dict[str, Any], asked: bool) -> None:
    monkeypatch.setattr(doctor, "examine_model", lambda model, revision: [("train", Finding(lines=["said"]))])
    assert doctor.check_new_model(str(model_with(tmp_path / "model", **changes))) == ["train: said"] * asked


def test_the_demo_makes_its_run_from_the_package_and_goes_on_with_it(tmp_path: Path) -> None:
    from warehouse.start.demo import run_demo
    said: list[str] = []
    for _ in range(2):
        run_demo(tmp_path / "run", 0, said.append)
    facts = json.loads((tmp_path / "run" / "warehouse.json").read_text())
    assert len(said) == 2 and Path(facts["model"]) == STARTER.resolve()
    assert (tmp_path / "run" / "config.toml").read_bytes() == (DATA / "config.toml").read_bytes()
