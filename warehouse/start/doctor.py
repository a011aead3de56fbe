"""Whether this machine can sample, isolate and train, and how a model can be used.

Each stage has a module `doctor` with `examine() -> Finding` and, if it depends on the model,
`examine_model(model, revision, copy) -> Finding`.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from warehouse.stages.base_model import download
from warehouse.start.finding import Finding
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError

STAGES = ("rollout", "score", "train")
OF_MODELS = ("train", "rollout")        # rollout starts its engine with train's tiny copy
# Families of docs/models.md that are fully tested: `init` need not test them again.
KNOWN = {"gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3"}
ODD_POSITIONS = {"longrope", "dynamic"}


def examine_model(model: str, revision: str | None = None, targets: str | None = None
                  ) -> Iterator[tuple[str, Finding]]:
    """How each stage can use a model, a folder or hub id, from its config and a tiny random copy.

    `targets` are those of an adapter, if not all linear layers.
    """
    with tempfile.TemporaryDirectory(prefix="rollhouse-doctor-") as folder:
        for stage, doctor in [(stage, doctor_of(stage)) for stage in OF_MODELS]:
            more = {"targets": targets} if targets and stage == "train" else {}
            yield stage, doctor.examine_model(model, revision, Path(folder), **more)


def check_new_model(model: str, revision: str | None = None, config: Path | None = None) -> list[str]:
    """Lines about a model and a run's config, needed before anything is sampled.

    StageError if the model cannot be trained as the config says.
    """
    trained = read_config(config).get("train", {}) if config else {}
    targets = trained.get("lora-targets")
    if not targets and _is_known(_config(model, revision)):
        return []
    lines = []
    for stage, finding in examine_model(model, revision, targets):
        refused = finding.facts.get("adapter", {}).get("refused") if targets else None
        if stage == "train" and (refused or not finding.able):
            raise StageError(f"{model} cannot be trained: {refused or finding.lines[-1]}")
        lines += [f"{stage}: {line}" for line in finding.lines]
    return lines


def _config(model: str, revision: str | None) -> dict[str, Any]:
    folder = Path(model) if revision is None else download(model, revision)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def _is_known(config: dict[str, Any]) -> bool:
    positions = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (config.get("model_type") in KNOWN and not config.get("quantization_config")
            and positions.get("rope_type", positions.get("type")) not in ODD_POSITIONS)


def doctor_of(stage: str) -> Any:
    """A stage's `doctor` module, imported by its name: this room imports no stage."""
    with contextlib.suppress(StageError):       # without an engine
        getattr(import_module(f"{stage}.cli"), "prepare_to_load", bool)()
    return import_module(f"{stage}.doctor")
