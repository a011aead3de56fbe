"""The doctor names what a stage lacks with its command; `init` refuses what cannot be trained."""

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from pydantic import AfterValidator, TypeAdapter
from transformers import AutoConfig

import rollout.doctor
import train.doctor
from benchmarks.model_checks import VOCABULARY, make_model
from benchmarks.model_families import FAMILIES
from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.engines.environment import on_cpu
from rollout.prompts.prompt_encoder import load_encoder
from score.judging import golden
from tests.building.runs import small_run
from warehouse.cli import cli
from warehouse.start import DATA, doctor
from warehouse.start.finding import ADAPTER, SAID, Finding
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


def test_a_machine_that_misjudges_a_golden_answer_cannot_score(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = golden.GOLDEN[0]._replace(code="import missing")
    monkeypatch.setattr(golden, "GOLDEN", [broken])
    result = invoke("doctor", "score")
    assert result.exit_code == 1 and "No module named 'missing'" in result.output
    assert "able: none" in result.output


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


def test_init_refuses_targets_that_the_model_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[train]\nlora-targets = "all-linear,experts"\n')
    result = invoke("init", tmp_path / "run", "--model", STARTER, "--tasks", "synthetic:2",
                    "--config", tmp_path / "config.toml")
    assert result.exit_code == 1 and "--lora-targets all-linear,experts: It has no experts." in result.output
    assert not (tmp_path / "run").exists()


def test_init_says_what_the_engine_does_not_know(tmp_path: Path) -> None:
    """No vLLM has an architecture of that name; transformers goes by the type."""
    odd = model_with(tmp_path / "odd", model_type="olmo", architectures=["OddForCausalLM"])
    told = dict(doctor.examine_model(str(odd)))
    assert told["train"].able and not told["rollout"].able
    lines = doctor.check_new_model(str(odd))
    assert any(line.startswith("rollout: vLLM cannot serve it") for line in lines)


def test_a_model_in_mistrals_own_form_too_is_read_in_that_of_transformers(tmp_path: Path) -> None:
    """As Mistral publishes its models; vLLM by itself takes its tokenizer, which renders no prompt here."""
    from rollout.engines import vllm_engine
    model = model_with(tmp_path / "model")
    shutil.copy(str(files("mistral_common") / "data" / "tekken_240911.json"), model / "tekken.json")
    (model / "params.json").write_text("{}")
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    encoder = vllm_engine.load_encoder(str(model))
    assert encoder([{"role": "user", "content": "hi"}], "")[1] == load_encoder(str(STARTER), None)(
        [{"role": "user", "content": "hi"}], "")[1]
    assert vllm_engine.why_unknown(str(model), None) is None
    result = invoke("init", tmp_path / "run", "--model", model, "--tasks", "synthetic:2")
    assert result.exit_code == 1 and "holds weights a second time, in Mistral's own form" in result.output


def full_size(family: str, folder: Path) -> Path:
    """The config of a model as large as published ones, with the starter's tokenizer and no weights."""
    make_model("llama", folder)
    options = {"model_type": family, **FAMILIES[family]}
    AutoConfig.for_model(**options, vocab_size=VOCABULARY, pad_token_id=0).save_pretrained(folder)
    return folder


@pytest.mark.engine
@pytest.mark.skipif(not on_cpu(), reason="what vLLM lacks without a GPU")
@pytest.mark.parametrize(("family", "reason", "way_out"), [
    pytest.param("lfm2", None, "", marks=pytest.mark.slow("an engine for each dtype")),
    pytest.param("deepseek_v3", "vLLM does not serve an adapter of it: vllm.model_executor.layers.fused_moe",
                 "Give --serve merged", marks=pytest.mark.slow("two minutes")),
    ("nemotron_h", "fused_moe.config: NotImplementedError: is_act_and_mul=False", "`rollout --endpoint URL`"),
    pytest.param("zaya", "its logprobs of sampled tokens and of the same tokens in a prompt are",
                 "`rollout --endpoint URL`", marks=pytest.mark.slow("an engine for each dtype")),
    ("qwen3_next", "vLLM does not serve it with --dtype float32 or float16: vllm.model_executor.layers.mamba."
     "ops.cpu.gdn_attention: AssertionError: CPU GDN attention requires BF16.", "Give --dtype bfloat16"),
    ("mixtral", "vLLM does not serve an adapter of it: vllm.model_executor.layers.fused_moe",
     "Give --serve merged")])
def test_a_copy_shows_in_which_dtypes_the_engine_samples_what_is_trained(
        family: str, reason: str | None, way_out: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    if family == "mixtral":         # of which the adapter alone is asked
        monkeypatch.setattr(rollout.doctor, "FURTHEST", {"bfloat16": rollout.doctor.FURTHEST["bfloat16"]})
    found = dict(doctor.examine_model(str(full_size(family, tmp_path))))
    sampling = found["rollout"]
    assert found["train"].able and sampling.able == ("--endpoint" not in way_out)
    if reason:
        [line] = [line for line in sampling.lines if reason in line]
        assert way_out in line
    else:
        assert sampling.facts["dtypes"]["float32"] < 1e-4 and sampling.facts["dtypes"]["bfloat16"] < 0.05
        assert sampling.facts["served_adapter"] < 0.05


def test_a_class_that_cannot_be_imported_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch,
                                                                 tmp_path: Path) -> None:
    from rollout.engines import vllm_engine

    class Lacking:
        def load_model_cls(self) -> None:
            lacking = ModuleNotFoundError("No module named 'torchvision'")
            raise ImportError("Could not import module 'OddProcessor'. Are ..?") from lacking

    def refuse(**_: Any) -> None:       # as a config does
        def check(_: Any) -> None:
            raise ValueError("Model architectures ['OddForCausalLM'] failed to be inspected. Please check ..")
        TypeAdapter(Annotated[int, AfterValidator(check)]).validate_python(1)
    monkeypatch.setattr(vllm_engine, "EngineArgs", refuse)
    monkeypatch.setitem(vllm_engine.ModelRegistry.models, "OddForCausalLM", Lacking())
    assert vllm_engine.why_unknown(str(STARTER), None) == (
        "ModuleNotFoundError: No module named 'torchvision'")


@pytest.mark.parametrize(("prompt", "sampled", "sentence"), [
    (-1.3, -1.3, None), (-1.0, -1.0, "vLLM and `train` are 0.3 nats apart"),
    (-1.3, -1.0, "its logprobs of sampled tokens and of the same tokens in a prompt are 0.3 nats apart")])
def test_an_engine_that_computes_something_else_is_refused(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompt: float, sampled: float,
        sentence: str | None) -> None:
    from rollout.engines import vllm_engine

    class Scripted:
        def __init__(self, settings: Any) -> None: ...

        def prompt_logprobs(self, ids: list[int]) -> list[float]:
            return [prompt] * (len(ids) - 1)

        def sample(self, requests: list[Request], sampling: Sampling) -> Iterator[Sampled | None]:
            yield None
            for request in requests:
                yield Sampled(request.index, [1, 2], [sampled] * 2, "", "length")
    monkeypatch.setattr(vllm_engine, "VllmEngine", Scripted)
    (tmp_path / SAID).write_text(json.dumps([[0, 1, 2], [-1.3, -1.3]]))
    found = rollout.doctor.examine_model(str(STARTER), None, tmp_path)
    assert found.able == (sentence is None) and (sentence or "is sampled") in found.lines[-1]


@pytest.mark.parametrize("served", [True, False])
def test_an_adapter_that_can_only_be_served_or_not_even_that_is_said(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: bool) -> None:
    train.doctor.examine_model(str(STARTER), None, tmp_path)
    config = tmp_path / ADAPTER / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "use_dora": True}))
    monkeypatch.setattr(rollout.doctor, "_gap", lambda _copy, _dtype, adapter=None: (
        "it has none" if adapter and not served else 0.0))
    lines = rollout.doctor.examine_model(str(STARTER), None, tmp_path).lines
    reason = "no adapter of it can be merged: it has use_dora = True and cannot simply be added to its base"
    assert f"{reason}. Give --serve adapter" in lines[-2:]
    assert served or lines[-1] == "vLLM does not serve an adapter of it: it has none. Train with --full"


@pytest.mark.skipif(not on_cpu(), reason="of the engine for CPUs")
@pytest.mark.parametrize(("family", "cached"), [("llama", True), ("zamba2", False), ("mamba2", False)])
def test_prefixes_of_recurrent_models_are_not_cached_on_a_cpu(family: str, cached: bool, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they were, a prompt longer than a block of the cache ended in an IndexError."""
    from rollout.engines import vllm_engine
    seen: dict[str, Any] = {}
    monkeypatch.setattr(vllm_engine, "LLM", lambda **options: seen.update(options) or Mock())
    make_model(family, tmp_path)
    vllm_engine._start(EngineSettings(str(tmp_path), None, 0, max_model_len=64), {})
    assert seen["enable_prefix_caching"] is cached


@pytest.mark.parametrize(("changes", "asked"), [
    ({}, False), ({"quantization_config": {"quant_method": "fp8"}}, True),
    ({"rope_parameters": {"rope_type": "dynamic"}}, True), ({"model_type": "lfm2"}, True)])
def test_init_tries_a_copy_of_what_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                changes: dict[str, Any], asked: bool) -> None:
    monkeypatch.setattr(doctor, "examine_model", lambda *_: [("train", Finding(lines=["said"]))])
    assert doctor.check_new_model(str(model_with(tmp_path / "model", **changes))) == ["train: said"] * asked


def test_the_demo_makes_its_run_from_the_package_and_goes_on_with_it(tmp_path: Path) -> None:
    from warehouse.start.demo import run_demo
    said: list[str] = []
    for _ in range(2):
        run_demo(tmp_path / "run", 0, said.append)
    facts = json.loads((tmp_path / "run" / "warehouse.json").read_text())
    assert len(said) == 1 and "next:" not in said[0] and Path(facts["model"]) == STARTER.resolve()
    assert (tmp_path / "run" / "config.toml").read_bytes() == (DATA / "config.toml").read_bytes()
    with pytest.raises(StageError, match="has other tasks than the demo's"):
        run_demo(small_run(tmp_path / "other").root, 1, said.append)
