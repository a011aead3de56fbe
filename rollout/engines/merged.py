"""A policy's adapter merged into its base: plain weights in a scratch folder while an engine loads them."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from rollout.engines.engine import OTHER_FORM
from rollout.engines.factors import Factors, weights_in
from warehouse.stages.space import saying_the_disk_is_full
from warehouse.store.errors import StageError

SCRATCH, LOCK = "rollhouse-merged-", ".in-use"     # prefix of folder names; lock file held by the user


def adapts_experts(adapter: Path) -> bool:
    """Whether an adapter changes the experts of a mixture; PEFT lists these as parameters, not modules."""
    return bool(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")).get(
        "target_parameters"))


@contextmanager
def merged_weights(model: str, revision: str | None, adapter: Path, dtype: str) -> Iterator[str]:
    """A folder with base + adapter, added in float32 and rounded to `dtype` once; gone afterwards.

    `dtype` "auto" keeps the base's own. The folder is in the system's temporary directory (TMPDIR).
    Raises StageError if more than addition is needed to merge the adapter, or if the disk is too small.
    """
    sweep()
    base = base_folder(model, revision)
    folder, lock = scratch_folder()
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


def scratch_folder() -> tuple[Path, int]:
    """A scratch folder and its lock, held by this process; retried if another `sweep` removed it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            return folder, lock
        os.close(lock)


def merge(base: Path, adapter: Path, folder: Path, dtype: str) -> None:
    """Write base + scale * B A for every adapted weight [out, in], and everything else unchanged."""
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

    Without an adapter, the base's own. StageError if more than addition is needed to merge it.
    """
    import torch
    files = sorted(base.glob("*.safetensors"))
    factors = Factors.read(adapter, files, device) if adapter else None
    wanted = None if dtype == "auto" else getattr(torch, dtype)
    for source, file, name in weights_in(files, device):
        weight = file.get_tensor(name)
        kept = weight.dtype if wanted is None or not weight.is_floating_point() else wanted
        change = factors.change(name, weight.shape) if factors else None
        yield name, (weight if change is None else weight.float() + change).to(kept), source
    if factors:
        factors.check_used(base)


def kept_by_rounding(base: Path, adapter: Path, dtype: str) -> float:
    """The share of an adapter's change that is left after merging it into its base and rounding to `dtype`.

    This is e.d / d.d with the change d and the difference e of the rounded weights, over the first 64 rows of
    each matrix. A weight does not change at all if its change is below half a rounding step.
    """
    import torch
    files = sorted(base.glob("*.safetensors"))
    factors, half = Factors.read(adapter, files), getattr(torch, dtype)
    kept = whole = 0.0
    for _, file, name in weights_in(files):
        slices = file.get_slice(name)
        change = factors.change(name, slices.get_shape(), rows=64)
        if change is None:
            continue
        weight = slices[:64]
        left = (weight.float() + change).to(half).float() - weight.to(half).float()
        share = slices.get_shape()[0] / len(change)
        kept += share * float((left * change).sum())
        whole += share * float(change.square().sum())
    return kept / whole if whole else 1.0


def base_folder(model: str, revision: str | None) -> Path:
    """The folder with the base's safetensors: the folder itself, or the hub's copy of that commit."""
    if Path(model).is_dir():
        folder = Path(model)
    else:
        from huggingface_hub import snapshot_download
        folder = Path(snapshot_download(model, revision=revision,
                                        ignore_patterns=["*.bin", "*.pt", "*.gguf", OTHER_FORM]))
    if not any(folder.glob("*.safetensors")):
        raise StageError(f"{model} has no safetensors weights to add an adapter to. Sample with "
                         "--serve adapter.")
    return folder


def sweep() -> None:
    """Remove the folders of processes that have ended.

    The lock shows this even across containers and machines, where process ids mean nothing.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        try:
            lock = os.open(left / LOCK, os.O_RDWR)
        except OSError:
            continue                 # another user's, or just created
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass                     # in use
        finally:
            os.close(lock)
