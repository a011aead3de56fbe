"""A policy's adapter added into its base: plain weights in a scratch folder while an engine loads them."""

import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from warehouse.stages.space import saying_the_disk_is_full
from warehouse.store.errors import StageError

SCRATCH, LOCK = "rollhouse-merged-", ".in-use"     # a folder's name begins so; its user has its file locked
UNSUPPORTED = {"bias": "none", "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None,
               "rank_pattern": {}, "alpha_pattern": {}}


@contextmanager
def merged_weights(model: str, revision: str | None, adapter: Path, dtype: str) -> Iterator[str]:
    """A folder with base + adapter, added in float32 and rounded to `dtype` once; gone afterwards.

    `dtype` "auto" keeps the base's own. It lies in the system's folder for temporary files (TMPDIR).
    Raises StageError when the adapter is of a form that is not simply added, or the disk is too small.
    """
    sweep()
    base = base_folder(model, revision)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
        if shutil.disk_usage(folder).free < 2 * size:
            raise StageError(f"{folder.parent} has too little space for the merged weights of {adapter} "
                             f"({2 * size / 2**30:.1f} GiB). Point TMPDIR at a larger disk, or sample with "
                             "--serve adapter.")
        with saying_the_disk_is_full(folder):
            merge(base, adapter, folder, dtype)
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def merge(base: Path, adapter: Path, folder: Path, dtype: str) -> None:
    """Write base + scale * B A for every adapted weight [out, in]; everything else as it is."""
    from safetensors.torch import save_file
    for source in base.iterdir():
        if source.is_file() and source.suffix not in (".safetensors", ".bin", ".pt", ".gguf"):
            (folder / source.name).symlink_to(source.resolve())
    for name, tensors in groupby(merged_tensors(base, adapter, dtype, "cpu"), key=lambda each: each[2].name):
        # one file of weights in memory at a time
        save_file({key: weight for key, weight, _ in tensors}, folder / name, metadata={"format": "pt"})


def merged_tensors(base: Path, adapter: Path | None, dtype: str,
                   device: str) -> Iterator[tuple[str, Any, Path]]:
    """Name, tensor and file of every weight of base + adapter, added in float32 and rounded to `dtype` once.

    Without an adapter the base's own. StageError if the adapter is not simply added.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    factors, scale = {}, 0.0
    if adapter:
        scale = scaling(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")), adapter)
        factors = load_file(adapter / "adapter_model.safetensors", device=device)
    added = {name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): name
             for name in factors if name.endswith(".lora_A.weight")}
    wanted = None if dtype == "auto" else getattr(torch, dtype)
    for source in sorted(base.glob("*.safetensors")):
        with safe_open(source, framework="pt", device=device) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                weight = file.get_tensor(name)
                kept = weight.dtype if wanted is None or not weight.is_floating_point() else wanted
                first = added.pop(name.removesuffix(".weight"), None)
                if first is not None:
                    change = factors[first.replace("lora_A", "lora_B")].float() @ factors[first].float()
                    weight = weight.float() + scale * change
                yield name, weight.to(kept), source
    if added:
        raise StageError(f"{adapter} changes {min(added)}, which {base} does not have as a plain weight. "
                         "Sample with --serve adapter.")


def kept_by_rounding(base: Path, adapter: Path, dtype: str) -> float:
    """The share of an adapter's change that is left when it is added into its base and rounded to `dtype`.

    e.d / d.d with d the change and e what the weights differ by afterwards, by the first 64 rows of each
    matrix: a weight of that dtype whose change is less than half of its rounding does not differ at all.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file
    factors, half = load_file(adapter / "adapter_model.safetensors"), getattr(torch, dtype)
    scale = scaling(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")), adapter)
    kept = whole = 0.0
    for source in base.glob("*.safetensors"):
        with safe_open(source, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                first = factors.get(f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight")
                if first is None:
                    continue
                second = factors[f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight"]
                change = scale * (second[:64].float() @ first.float())
                weight = file.get_slice(name)[:64]
                left = (weight.float() + change).to(half).float() - weight.to(half).float()
                kept += len(second) / len(change) * float((left * change).sum())
                whole += len(second) / len(change) * float(change.square().sum())
    return kept / whole if whole else 1.0


def scaling(config: dict[str, Any], adapter: Path) -> float:
    """What B A is multiplied by; StageError for forms of adapters that do more than add B A."""
    for name, plain in UNSUPPORTED.items():
        if config.get(name, plain) != plain:
            raise StageError(f"{adapter} has {name} = {config[name]} and cannot simply be added to its base. "
                             "Sample with --serve adapter.")
    rank = config["r"]
    return float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def changes_something(adapter: Path) -> bool:
    """False for an adapter that was never trained: its B is zero, or nearly."""
    from safetensors.torch import load_file
    factors = load_file(adapter / "adapter_model.safetensors")
    return any(float(weight.abs().max()) > 1e-5 for name, weight in factors.items() if "lora_B" in name)


def base_folder(model: str, revision: str | None) -> Path:
    """Where the base's safetensors lie: the folder itself, or the hub's copy of that commit."""
    if Path(model).is_dir():
        folder = Path(model)
    else:
        from huggingface_hub import snapshot_download
        folder = Path(snapshot_download(model, revision=revision,
                                        ignore_patterns=["*.bin", "*.pt", "*.gguf"]))
    if not any(folder.glob("*.safetensors")):
        raise StageError(f"{model} has no safetensors weights to add an adapter to. Sample with "
                         "--serve adapter.")
    return folder


def sweep() -> None:
    """Remove what processes that no longer live left behind.

    A lock tells, also of other containers and machines that share the folder, whose process ids say nothing.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        try:
            lock = os.open(left / LOCK, os.O_RDWR)
        except OSError:
            continue                 # somebody else's, or made just now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass                     # in use
        finally:
            os.close(lock)
