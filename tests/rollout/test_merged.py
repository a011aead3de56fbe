"""Policies served merged into their base: the sum is PEFT's own, and nothing of it stays behind."""

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rollout.engines.engine import Sampling
from rollout.engines.merged import (
    LOCK,
    SCRATCH,
    kept_by_rounding,
    merge,
    merged_weights,
    scratch_folder,
)
from rollout.run import run_rollout
from tests.building.runs import add_policy, arc_file
from tests.building.scripted import ScriptedEngine, default_options, scripted_sampler
from tests.rollout.test_run import rows, sample
from warehouse.init import init_run
from warehouse.store.checksums import weights_sha256
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

BASE = Path(__file__).parents[2] / "examples" / "starter" / "model"


def adapter(folder: Path, **options) -> Path:
    """An adapter on the starter whose change is not small."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32), LoraConfig(
        r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM", **options))
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_those_of_peft_rounded_once(tmp_path: Path, dtype: str, rslora: bool) -> None:
    lora, folder = adapter(tmp_path / "lora", use_rslora=rslora), tmp_path / "merged"
    folder.mkdir()
    merge(BASE, lora, folder, dtype)
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    expected = PeftModel.from_pretrained(base, str(lora)).merge_and_unload().to(getattr(torch, dtype))
    state, changed = expected.state_dict(), 0
    for name, weight in load_file(folder / "model.safetensors").items():
        assert weight.dtype == getattr(torch, dtype)
        torch.testing.assert_close(weight, state[name], rtol=1e-6 if dtype == "float32" else 0.008, atol=1e-7)
        changed += not torch.equal(weight, load_file(BASE / "model.safetensors")[name].to(weight.dtype))
    assert changed >= 7 * base.config.num_hidden_layers
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == base.config.vocab_size


def test_the_scratch_folder_is_gone_afterwards_and_so_are_those_of_the_dead(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = adapter(tmp_path / "lora")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("dead", "elsewhere", "fresh"):
        (tmp_path / f"{SCRATCH}{name}").mkdir()
    (tmp_path / f"{SCRATCH}dead" / LOCK).touch()
    held = os.open(tmp_path / f"{SCRATCH}elsewhere" / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)            # by a process of which only the lock can be seen here
    with merged_weights(str(BASE), None, lora, "float32") as folder:
        assert (Path(folder) / "tokenizer.json").exists() and Path(folder).parent == tmp_path
        kept = {f"{SCRATCH}elsewhere", f"{SCRATCH}fresh"}
        assert {path.name for path in tmp_path.glob(f"{SCRATCH}*")} == {Path(folder).name, *kept}
    os.close(held)
    assert {path.name for path in tmp_path.glob(f"{SCRATCH}*")} == kept


@pytest.mark.parametrize(("change", "sentence"), [
    ({"use_dora": True}, "has use_dora = True and cannot simply be added"),
    ({"rank_pattern": {"q_proj": 2}}, "has rank_pattern"),
])
def test_an_adapter_that_is_more_than_a_sum_is_refused(tmp_path: Path, change: dict, sentence: str) -> None:
    lora = adapter(tmp_path / "lora")
    config = json.loads((lora / "adapter_config.json").read_text())
    (lora / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with (pytest.raises(StageError, match=sentence),
          merged_weights(str(BASE), None, lora, "float32")):
        raise AssertionError("served all the same")


def test_an_adapter_of_other_modules_is_refused(tmp_path: Path) -> None:
    lora = adapter(tmp_path / "lora")
    short = tmp_path / "base"
    short.mkdir()
    weights = load_file(BASE / "model.safetensors")
    gone = next(name for name in weights if name.endswith("q_proj.weight"))
    del weights[gone]
    save_file(weights, short / "model.safetensors")
    (tmp_path / "out").mkdir()
    with pytest.raises(StageError, match=r"which .* does not have as a plain weight"):
        merge(short, lora, tmp_path / "out", "float32")


def scaled(lora: Path, factor: float) -> Path:
    config = json.loads((lora / "adapter_config.json").read_text())
    config["lora_alpha"] *= factor
    (lora / "adapter_config.json").write_text(json.dumps(config))
    return lora


@pytest.mark.parametrize("factor", [1.0, 0.002])
def test_what_rounding_leaves_of_an_adapter_is_what_merged_weights_say(tmp_path: Path, factor: float) -> None:
    lora, shares = scaled(adapter(tmp_path / "lora"), factor), {}
    base = load_file(BASE / "model.safetensors")
    for dtype in ("float32", "float16", "bfloat16"):
        folder = tmp_path / dtype
        folder.mkdir()
        merge(BASE, lora, folder, dtype)
        merged, kept, whole = load_file(folder / "model.safetensors"), 0.0, 0.0
        exact = load_file(tmp_path / "float32" / "model.safetensors")
        for name, weight in base.items():
            change = exact[name].double() - weight.double()
            left = merged[name].double() - weight.to(merged[name].dtype).double()
            kept, whole = kept + float((left * change).sum()), whole + float(change.square().sum())
        shares[dtype] = kept / whole
        assert kept_by_rounding(BASE, lora, dtype) == pytest.approx(shares[dtype], abs=0.02), dtype
    assert shares["bfloat16"] < 0.6 if factor < 1 else shares["bfloat16"] > 0.98
    assert shares["float16"] > 0.85


def test_of_a_base_in_float32_the_mean_of_a_small_change_is_left(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lora, base = scaled(adapter(tmp_path / "lora"), 0.002), tmp_path / "base"
    base.mkdir()
    save_file({name: weight.float() * (1 + torch.rand_like(weight.float()) / 100)
               for name, weight in load_file(BASE / "model.safetensors").items()}, base / "model.safetensors")
    assert kept_by_rounding(base, lora, "bfloat16") == pytest.approx(1, abs=0.2)


def run_with_adapter(tmp_path: Path, names: tuple[str, ...] | list[str] = ("t0",), *,
                     factor: float = 1.0) -> Warehouse:
    """A run on the starter whose policy 1 is an adapter, its change multiplied by a factor."""
    tasks = arc_file(tmp_path, list(names))
    init_run(tmp_path / "run", str(BASE), (str(tasks),))
    warehouse = open_warehouse(tmp_path / "run")
    lora = scaled(adapter(warehouse.scratch("policy")), factor)
    facts = {"policy_version": 1, "parent": 0, "kind": "lora", "sha256": weights_sha256(lora)}
    (lora / "policy.json").write_text(json.dumps(facts))
    add_policy(warehouse, 1, lora)
    return warehouse


@pytest.mark.parametrize(("serve", "merged"), [("merged", True), ("adapter", False)])
def test_the_engine_gets_what_was_asked_for_and_the_rows_say_it(tmp_path: Path, serve: str,
                                                                merged: bool) -> None:
    warehouse = run_with_adapter(tmp_path)
    engine = sample(warehouse, iteration=1, serve=serve)
    [settings] = engine.started
    assert (settings.adapter is None) == merged and (SCRATCH in settings.model) == merged
    assert {row["engine"] for row in rows(warehouse, 1)} == {f"scripted 1 ({serve})"}


@pytest.mark.parametrize(("on_cpu", "asked", "got"), [
    (True, "auto", "float32"), (False, "auto", "auto"), (True, "bfloat16", "bfloat16")])
def test_on_a_cpu_auto_is_float32_for_the_engine_and_for_merged_weights(
        tmp_path: Path, monkeypatch, on_cpu: bool, asked: str, got: str) -> None:
    """vLLM would round a model in float32 to bfloat16."""
    monkeypatch.setattr("rollout.settings.on_cpu", lambda: on_cpu)
    merged = []
    monkeypatch.setattr("rollout.start.merged_weights",
                        lambda *words: merged.append(words[-1]) or merged_weights(*words))
    engine = sample(run_with_adapter(tmp_path), iteration=1, serve="merged", dtype=asked)
    assert [settings.dtype for settings in engine.started] == merged == [got]


def test_an_adapter_in_float32_is_refused_on_a_gpu_before_an_engine_is_started(tmp_path: Path,
                                                                               monkeypatch) -> None:
    monkeypatch.setattr("rollout.settings.on_cpu", lambda: False)
    warehouse = run_with_adapter(tmp_path)
    engine = ScriptedEngine()
    with pytest.raises(StageError, match=r"adapters only in half precision\. Leave --serve adapter out"):
        sample(warehouse, engine, iteration=1, serve="adapter", dtype="float32")
    assert not engine.started
    assert sample(warehouse, engine, iteration=1, serve="adapter", dtype="bfloat16").served


@pytest.mark.parametrize(("factor", "dtype"), [(0.002, "bfloat16"), (0.002, "float16"), (1.0, "bfloat16")])
def test_a_merged_policy_of_which_rounding_leaves_little_is_told_and_kept_in_the_manifest(
        tmp_path: Path, factor: float, dtype: str) -> None:
    warehouse = run_with_adapter(tmp_path, factor=factor)
    engine, said = ScriptedEngine(), []
    engine.dtype = dtype
    options = default_options(warehouse.root).replace(iteration=1, serve="merged",
                                                              sampling=Sampling(max_tokens=20))
    list(run_rollout(options, scripted_sampler(engine), say=said.append))
    kept = warehouse.stage("rollout", iteration=1, purpose="train").manifest()["facts"]["adapter_kept"]
    little = (factor, dtype) == (0.002, "bfloat16")
    assert (kept < 0.6) == little
    told = [line for line in said if "of the change by training is left" in line]
    assert told == ([f"merged in bfloat16, {kept:.0%} of the change by training is left, the rest is lost to "
                     "rounding: --serve adapter keeps all of it, --dtype float16 more"] if little else [])


class Deaf(ScriptedEngine):
    """An engine that was given an adapter and serves the base."""

    def moves(self, prompt_ids: list[int]) -> bool:
        return False


def test_an_engine_that_does_not_serve_the_adapter_is_refused_before_it_samples(tmp_path: Path) -> None:
    warehouse = run_with_adapter(tmp_path)
    with pytest.raises(StageError, match=r"does not serve the adapter of policy 1: without it"):
        sample(warehouse, Deaf(), iteration=1, serve="adapter")
    assert not warehouse.folder("prompts", iteration=1, purpose="train").exists()
    assert sample(warehouse, Deaf(), iteration=1, serve="merged").served


@pytest.mark.parametrize("step", ["mkdtemp", "flock"])
def test_a_folder_that_another_process_swept_while_it_was_made_is_made_again(
        step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module, made = {"mkdtemp": tempfile, "flock": fcntl}[step], list[Path]()
    original = getattr(module, step)

    def swept(*args: Any, **keys: Any) -> Any:
        result = original(*args, **keys)
        if not made:
            made.extend(tmp_path.glob(f"{SCRATCH}*"))
            shutil.rmtree(made[0])
        return result
    monkeypatch.setattr(module, step, swept)
    folder, lock = scratch_folder()
    os.close(lock)
    assert made and folder != made[0] and (folder / LOCK).exists()
