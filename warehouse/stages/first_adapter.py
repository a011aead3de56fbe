"""The adapter that a run starts from: policy 0, if `warehouse init --adapter` names one."""

import json
import shutil
from pathlib import Path
from typing import Any

from warehouse.store.checksums import file_hashes, weights_sha256
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_folder(adapter: Path) -> Path:
    """The folder with the adapter's files; for RUN/policies/N the current folder of policy N."""
    place = adapter.absolute()
    if place.parent.name == "policies" and place.name.isdigit():
        return open_warehouse(place.parents[1]).policy_dir(int(place.name))
    return adapter


def check_adapter(adapter: Path) -> dict[str, Any]:
    """The adapter's config; StageError if the folder holds no LoRA adapter in PEFT's format."""
    try:
        config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(f"{adapter} is not an adapter: {CONFIG} is missing or damaged. Give a folder that "
                         "PEFT wrote, or RUN/policies/N of another run.") from error
    if config.get("peft_type") != "LORA" or not (adapter / WEIGHTS).is_file():
        raise StageError(f"{adapter} is not a LoRA adapter with {WEIGHTS}. Give a folder that PEFT wrote, or "
                         "merge the adapter into its base and pass the result as --model.")
    return dict(config)


def bring_adapter(adapter: Path, folder: Path) -> dict[str, Any]:
    """Copy an adapter into the folder of a policy; return its facts for policy.json."""
    config = check_adapter(adapter)
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(adapter / name, folder / name)
    settings = {"lora_rank": config["r"], "lora_alpha": float(config["lora_alpha"]),
                "rslora": bool(config.get("use_rslora"))}
    return {"kind": "lora", "sha256": weights_sha256(folder), "files": file_hashes(folder),
            "settings": settings}
