"""An engine that stays from rollout to rollout always holds the weights that the rows will name."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from rollout.cli import default_options
from rollout.engines.engine import EngineSettings, Sampling
from rollout.run import run_rollout
from rollout.start import room_to_come
from tests.building import runs
from tests.building.runs import fake_model, new_run
from tests.building.scripted import ScriptedEncoder, ScriptedEngine
from warehouse.stages import warm
from warehouse.store.checksums import file_hashes, weights_sha256
from warehouse.store.commit import commit_json
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse


class Loaded(ScriptedEngine):
    """Remembers what it has loaded and, for every sampling, what it held: base and what was added."""

    held: ClassVar[list[tuple[str, str]]] = []
    engines: ClassVar[list[EngineSettings]] = []
    encoders: ClassVar[list[tuple[str, str | None]]] = []
    made: ClassVar[list["Loaded"]] = []
    adapter: str | None = None
    asleep = False

    def __init__(self, settings: EngineSettings, *, sleeps: bool = False) -> None:
        super().__init__()
        self.engines.append(settings)
        self.made.append(self)
        self.load(Path(settings.model), None, settings.dtype)

    def load(self, folder: Path, adapter: Path | None, dtype: str) -> None:
        self.holds = ((folder / "model.safetensors").read_text(),
                      (adapter / "adapter_model.safetensors").read_text() if adapter else "")

    def sample(self, *asked: Any) -> Any:
        self.held.append(self.holds)
        return super().sample(*asked)

    def serve(self, adapter: str | None) -> None:
        type(self).adapter = adapter

    def wake(self) -> None:
        self.asleep = False

    def sleep(self) -> None:
        self.asleep = True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Loaded]]:
    """Rollouts of this process keep an engine that is scripted."""
    door = ModuleType("rollout.engines.vllm_engine")

    def load_encoder(model: str, revision: str | None) -> ScriptedEncoder:
        Loaded.encoders.append((model, revision))
        return ScriptedEncoder(model)

    door.VllmEngine, door.load_encoder = Loaded, load_encoder                           # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rollout.engines.vllm_engine", door)
    monkeypatch.setattr("rollout.engines.vllm_engine", door, raising=False)
    monkeypatch.setattr("rollout.start.prepare_environment", lambda: None)
    monkeypatch.setattr(warm, "stays", True)
    monkeypatch.setattr(warm, "sound", True)
    sys.modules.pop("rollout.engines.resident_engine", None)
    Loaded.held, Loaded.engines, Loaded.encoders, Loaded.made = [], [], [], []
    yield Loaded
    sys.modules.pop("rollout.engines.resident_engine")


def run_of(folder: Path, model: Path, weights: str) -> Warehouse:
    (fake_model(model) / "model.safetensors").write_text(weights)
    return new_run(folder, model=model)


def add_policy(warehouse: Warehouse, version: int, weights: str, config: str = '{"r": 32}') -> None:
    folder = warehouse.scratch("policy")
    (folder / "adapter_model.safetensors").write_text(weights)
    (folder / "optimizer.pt").write_text("moments")
    (folder / "adapter_config.json").write_text(config)
    commit_json(folder / "policy.json", {"policy_version": version, "sha256": weights_sha256(folder),
                                         "kind": "lora", "parent": 0, "files": file_hashes(folder)})
    runs.add_policy(warehouse, version, folder)


def add_whole_policy(warehouse: Warehouse, version: int, weights: str) -> None:
    folder = fake_model(warehouse.scratch("policy"))
    (folder / "model.safetensors").write_text(weights)
    commit_json(folder / "policy.json", {"policy_version": version, "sha256": weights_sha256(folder),
                                         "kind": "full", "parent": 0, "files": file_hashes(folder)})
    runs.add_policy(warehouse, version, folder)


def roll(warehouse: Warehouse, **values: Any) -> None:
    """A rollout, begun anew in what stands for another process where it asks for one."""
    options = default_options(warehouse.root).replace(
        sampling=Sampling(max_tokens=20), group_size=4, prompt_format="compact", serve="merged")
    options = options.replace(**values)
    try:
        list(run_rollout(options))
    except warm.NewProcess:
        sys.modules.pop("rollout.engines.resident_engine")
        list(run_rollout(options))


def test_another_base_at_the_same_path_is_another_engine(tmp_path: Path, kept: type[Loaded]) -> None:
    for name, weights in (("first", "a"), ("second", "b"), ("third", "b")):
        roll(run_of(tmp_path / name, tmp_path / "model", weights))
    assert not warm.sound       # a rollout that fails with the engine at hand is the last of its process
    assert kept.held == [("a", ""), ("b", ""), ("b", "")]
    assert len(kept.engines) == 2 and len(kept.encoders) == 3   # the same base needs no other


def test_the_tokenizer_is_that_of_the_commit_of_the_run(tmp_path: Path, kept: type[Loaded]) -> None:
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    (warehouse.root / "warehouse.json").unlink()
    commit_json(warehouse.root / "warehouse.json", warehouse.facts | {"model_revision": "c0ffee"})
    roll(warehouse)
    assert kept.encoders == [(str(tmp_path / "model"), "c0ffee")]


def test_another_base_is_not_given_the_length_of_the_former(tmp_path: Path, kept: type[Loaded]) -> None:
    roll(run_of(tmp_path / "long", tmp_path / "a", "a"), max_prompt_tokens=900)
    roll(run_of(tmp_path / "short", tmp_path / "b", "b"), max_prompt_tokens=400)
    assert [settings.max_model_len for settings in kept.engines] == [920, 420]


@pytest.mark.parametrize(("longest", "named", "room"), [
    (300, None, 512), (512, None, 512), (513, None, 1024), (3000, None, 4076), (300, 2048, 2048)])
def test_an_engine_that_stays_has_room_for_longer_prompts(tmp_path: Path, longest: int, named: int | None,
                                                          room: int) -> None:
    """Else a run that names no longest prompt starts it anew whenever it draws a longer one."""
    options = default_options(tmp_path).replace(sampling=Sampling(max_tokens=20), max_prompt_tokens=named)
    assert room_to_come(options, longest, model_length=4096) == room


@pytest.mark.parametrize("awake", [True, False])
def test_an_engine_gives_up_its_gpu_unless_trainings_have_room_beside_it(
        tmp_path: Path, kept: type[Loaded], monkeypatch: pytest.MonkeyPatch, awake: bool) -> None:
    monkeypatch.setenv(warm.AWAKE, "1") if awake else monkeypatch.delenv(warm.AWAKE, raising=False)
    roll(run_of(tmp_path / "run", tmp_path / "model", "a"))
    assert kept.made[0].asleep is not awake


@pytest.mark.parametrize(("wanted", "told"), [
    ({"gpu_memory_utilization": 0.4}, "gpu_memory_utilization 0.9, not 0.4"),
    ({"max_num_seqs": 7}, "max_num_seqs 128, not 7"),
    ({"max_prompt_tokens": 1000}, "room for 920 tokens, not 1020")])
def test_an_engine_that_does_not_fit_asks_for_another_process(tmp_path: Path, kept: type[Loaded], told: str,
                                                             wanted: dict[str, Any]) -> None:
    """On a GPU vLLM has no second engine that sleeps in one process: it ends in an AssertionError."""
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    with pytest.raises(StageError, match="has no split"):
        roll(warehouse, splits=("nonsense",))
    assert warm.sound
    roll(warehouse, max_prompt_tokens=900)
    options = default_options(warehouse.root).replace(
        sampling=Sampling(max_tokens=20), group_size=4, prompt_format="compact", serve="merged", iteration=1,
        policy_version=0, max_prompt_tokens=900).replace(**wanted)
    said: list[str] = []
    with pytest.raises(warm.NewProcess, match=told):
        list(run_rollout(options, say=said.append))
    assert not said         # of an engine that starts: the other process will
    assert len(kept.engines) == 1 and not (warehouse.root / "completions/iteration=1").exists()


def test_a_policy_trained_anew_under_the_same_number_is_loaded_anew(tmp_path: Path,
                                                                    kept: type[Loaded]) -> None:
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    add_policy(warehouse, 1, "one")
    roll(warehouse, iteration=1)
    warehouse.policy_dir(1).rename(tmp_path / "put-aside")
    add_policy(warehouse, 1, "other")
    roll(warehouse, iteration=2, policy_version=1)
    roll(warehouse, iteration=0)
    assert kept.held == [("a", "one"), ("a", "other"), ("a", "")] and len(kept.engines) == 1


@pytest.mark.parametrize(("device", "engines"), [("cpu", 4), ("cuda", 1)])
def test_on_a_cpu_whole_weights_are_another_engine(tmp_path: Path, kept: type[Loaded], engines: int,
                                                   device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM packs an output layer there that is tied to the embedding, when it starts and not later."""
    monkeypatch.setattr(kept, "device", device)
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    for version, weights in ((1, "one"), (2, "two")):
        add_whole_policy(warehouse, version, weights)
    for iteration, version in enumerate((0, 1, 2, 2, 0)):
        roll(warehouse, iteration=iteration, policy_version=version)
    assert kept.held == [("a", ""), ("one", ""), ("two", ""), ("two", ""), ("a", "")]
    assert len(kept.engines) == engines


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_outlives_the_policy_that_it_started_with(tmp_path: Path, kept: type[Loaded], device: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """As `keep-policies` removes it, or a run that was moved."""
    monkeypatch.setattr(kept, "device", device)
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    for version, weights in ((1, "one"), (2, "two")):
        add_policy(warehouse, version, weights)
    roll(warehouse, iteration=1)
    (warehouse.policy_dir(1) / "adapter_config.json").unlink()
    roll(warehouse, iteration=2)
    assert kept.held == [("a", "one"), ("a", "two")] and len(kept.engines) == 1


def test_what_only_train_reads_of_a_policy_is_not_read(tmp_path: Path, kept: type[Loaded]) -> None:
    """It is most of what `train --full` writes: hashing it took ten seconds of a rollout of a 1.5B model."""
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    add_policy(warehouse, 1, "one")
    (warehouse.policy_dir(1) / "optimizer.pt").write_text("damaged")
    roll(warehouse, iteration=1)
    assert len(kept.held) == 1
    with pytest.raises(StageError, match=r"optimizer.pt was changed or damaged"):
        warehouse.verify_policy(1)
    (warehouse.policy_dir(1) / "adapter_model.safetensors").write_text("other")
    with pytest.raises(StageError, match="they were changed or damaged"):
        roll(warehouse, iteration=2, policy_version=1)


def test_adapters_beside_the_base_load_no_weights(tmp_path: Path, kept: type[Loaded]) -> None:
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    add_policy(warehouse, 1, "one")
    add_policy(warehouse, 2, "two")
    for version in (0, 1, 2):
        roll(warehouse, iteration=version, serve="adapter")
    assert kept.held == [("a", "")] * 3 and len(kept.engines) == 1
    assert kept.adapter == str(warehouse.policy_dir(2))


def test_a_format_of_the_users_own_is_read_anew_by_every_rollout(tmp_path: Path, kept: type[Loaded],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was edited, and one of the same name in the folder of another command, is another."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        warehouse = run_of(tmp_path / folder / "run", tmp_path / "model", "a")
        for iteration, word in enumerate(("Go", "Now!!")):
            Path("mine.py").write_text(f"def ask(pairs, test_input):\n    return '{folder} {word}'\n")
            roll(warehouse, prompt_format="mine.py:ask", iteration=iteration, policy_version=0)
            said = warehouse.read("prompts", ["prompt"], iteration=iteration, purpose="train")
            assert all(f"{folder} {word}" in prompt for prompt in said["prompt"].to_pylist())


def test_an_engine_that_cannot_be_kept_has_a_process_that_ends_with_its_rollout(
        tmp_path: Path, kept: type[Loaded]) -> None:
    """Where that process stayed, the next training found the GPU taken."""
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    roll(warehouse)
    options = default_options(warehouse.root).replace(
        sampling=Sampling(max_tokens=20), group_size=4, prompt_format="compact", quantization="fp8",
        iteration=1, policy_version=0)
    with pytest.raises(warm.NewProcess, match="another process starts it"):
        list(run_rollout(options, say=pytest.fail))
    assert warm.stays and len(kept.engines) == 1
    sys.modules.pop("rollout.engines.resident_engine")
    list(run_rollout(options))
    assert not warm.stays and len(kept.engines) == 2


@pytest.mark.parametrize("stays", [True, False])
def test_an_engine_that_serves_another_policy_is_refused_warm_and_cold(tmp_path: Path, kept: type[Loaded],
                                                                       monkeypatch: pytest.MonkeyPatch,
                                                                       stays: bool) -> None:
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    add_policy(warehouse, 1, "one")
    (warehouse.policy_dir(1) / "probe.json").write_text(json.dumps({
        "prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "logprobs": [-1.0, -1.1, -1.2],
        "logprobs_before": [-1.3, -1.0, -1.6]}))
    monkeypatch.setattr(warm, "stays", stays)
    said = {True: [-2.0, -1.0, -1.1, -1.2], False: [-2.0, -1.3, -1.0, -1.6]}
    for serves, refused in ((False, True), (True, False)):
        monkeypatch.setattr(Loaded, "prompt_logprobs", lambda self, ids, serves=serves: said[serves],
                            raising=False)
        if refused:
            with pytest.raises(StageError, match="does not serve the policy of"):
                roll(warehouse, iteration=1, policy_version=1, serve="adapter")
            assert not (warehouse.root / "completions").exists()
        else:
            roll(warehouse, iteration=1, policy_version=1, serve="adapter")
    assert len(kept.held) == 1


def test_experts_are_merged_before_the_engine_starts(tmp_path: Path, kept: type[Loaded],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM packs them on a CPU when it starts: an engine that got them later would be started without end."""
    warehouse = run_of(tmp_path / "run", tmp_path / "model", "a")
    for version, weights in ((1, "one"), (2, "two")):
        add_policy(warehouse, version, weights, '{"r": 32, "target_parameters": ["mlp.experts.down_proj"]}')

    @contextmanager
    def merged(model: str, _revision: str | None, adapter: Path, _dtype: str) -> Iterator[str]:
        folder = fake_model(tmp_path / "merged")
        (folder / "model.safetensors").write_text((adapter / "adapter_model.safetensors").read_text())
        yield str(folder)
    monkeypatch.setattr("rollout.engines.merged.merged_weights", merged)
    for iteration, version in enumerate((0, 1, 1, 2)):
        roll(warehouse, iteration=iteration, policy_version=version)
    assert kept.held == [("a", ""), ("one", ""), ("one", ""), ("two", "")] and len(kept.engines) == 3
