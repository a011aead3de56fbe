"""The change that a LoRA adapter makes to each weight in the base's files, in float32.

A file may name a weight differently from the trained model: multimodal models nest their text model one
level deeper, and experts that are one tensor in memory may be many in files.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from warehouse.store.errors import StageError

UNSUPPORTED = {"bias": "none", "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None,
               "rank_pattern": {}, "alpha_pattern": {}}
FACTOR = re.compile(r"base_model\.model\.(.+?)((?:\.base_layer)*)\.lora_([AB])\.weight")
LEFT_OUT = {"model", "language_model", "backbone", "forget_gate"}
CALLED = {"block_sparse_moe": "mlp", "shared_mlp": "shared_experts", "shared_expert": "shared_experts"}
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.weight")
HALVES = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1}       # halves of gate_up_proj
WRITES = ("down_proj", "w2", "output_linear")


@dataclass
class Factors:
    """The factors A and B of an adapter by module, and which of them were used.

    Experts may have two pairs: A [E r, in] and B [out, r E], of the matrix that reads the hidden state
    and of the one that writes it, in this order (PEFT nests the first deeper).
    """

    adapter: Path
    files: list[Path]       # of the base's weights
    rank: int
    scale: float
    pairs: dict[str, list[tuple[str, Any, Any]]]    # name of A's tensor, A, B
    used: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, adapter: Path, files: list[Path], device: str = "cpu") -> Self:
        """The factors in an adapter's folder; StageError if more than addition is needed to merge them."""
        from safetensors.torch import load_file
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(adapter / "adapter_model.safetensors", device=device)
        pairs = defaultdict(list)
        for name in sorted(tensors, key=lambda name: -name.count(".base_layer")):
            if (match := FACTOR.fullmatch(name)) and match[3] == "A":
                second = tensors[name.replace("lora_A", "lora_B")].float()
                pairs[plain_name(match[1])].append((name, tensors[name].float(), second))
        return cls(adapter, files, config["r"], scaling(config, adapter), pairs)

    def change(self, name: str, shape: Sequence[int], rows: int | None = None) -> Any:
        """The change of the weight with this name and shape, or of its first rows; None if it has none."""
        if (expert := EXPERT.fullmatch(name)) and plain_name(expert[1]) in self.pairs:
            return self._of_expert(plain_name(expert[1]), int(expert[2]), expert[3], shape, rows)
        module = plain_name(name.removesuffix(".weight"))
        if len(shape) == 3:
            parent, _, part = module.rpartition(".")
            found = next((each for each in (module, parent, f"{parent}.experts") if each in self.pairs), "")
            return self._of_experts(found, part, shape, rows)
        for first, down, up in self.pairs.get(module, ()):
            self.used.add(first)
            return self.scale * (up[:rows] @ down)
        return None

    def _of_expert(self, module: str, index: int, part: str, shape: Sequence[int], rows: int | None) -> Any:
        """The change of one expert's matrix [out, in], which may be half of a larger one in the model."""
        num_out, num_in = shape
        for first, down, up in self._pairs(module, part):
            halves = len(up) == 2 * num_out and part in HALVES
            if down.shape[1] == num_in and (halves or len(up) == num_out):
                start = num_out * HALVES[part] if halves else 0
                self.used.add(first)
                end = start + min(rows or num_out, num_out)
                own = up.reshape(len(up), self.rank, -1)[start:end, :, index]
                return self.scale * (own @ down.reshape(-1, self.rank, num_in)[index])
        return None

    def _pairs(self, module: str, part: str) -> list[tuple[str, Any, Any]]:
        """The pairs of a module, the one for `part` first."""
        pairs = self.pairs.get(module, [])
        return pairs[::-1] if part in WRITES else pairs

    def _of_experts(self, module: str, part: str, shape: Sequence[int], rows: int | None) -> Any:
        """The change of all experts in one tensor, [E, out, in] or [E, in, out]."""
        for first, down, up in self._pairs(module, part):
            sizes = [len(up), down.shape[1]]
            if sizes in ([*shape[1:]], [*reversed(shape[1:])]):
                self.used.add(first)
                change = self.scale * (up.reshape(len(up), self.rank, -1).permute(2, 0, 1)
                                       @ down.reshape(shape[0], self.rank, -1))[:rows]
                if sizes[0] == sizes[1] and module not in self._turned:
                    raise StageError(f"{self.adapter} changes {module}.{part}, but its shape does not tell "
                                     "rows from columns. Sample with --serve adapter.")
                turned = self._turned[module] if sizes[0] == sizes[1] else sizes != [*shape[1:]]
                return change.transpose(1, 2) if turned else change
        return None

    @cached_property
    def _turned(self) -> dict[str, bool]:
        """Whether files store experts' matrices as [E, in, out], by module; square ones do not tell."""
        turned = {}
        for _, file, name in weights_in(self.files):
            module, shape = plain_name(name).rpartition(".")[0], file.get_slice(name).get_shape()[1:]
            for _, down, up in self.pairs.get(module, ()):
                if len({*shape}) == 2 and {*shape} == {len(up), down.shape[1]}:
                    turned[module] = shape[0] != len(up)
        return turned

    def check_used(self, base: Path) -> None:
        """StageError if any factor belongs to no weight of the base."""
        if left := sorted({name for pairs in self.pairs.values() for name, _, _ in pairs} - self.used):
            raise StageError(f"{self.adapter} changes {left[0].removesuffix('.lora_A.weight')}, which {base} "
                             "does not have as a plain weight. Sample with --serve adapter.")


def weights_in(files: list[Path], device: str = "cpu") -> Iterator[tuple[Path, Any, str]]:
    """The name of every weight in safetensors files, with its file and that file opened."""
    from safetensors import safe_open
    for source in files:
        with safe_open(source, framework="pt", device=device) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield source, file, name


def plain_name(module: str) -> str:
    """A module's name without the parts that differ between files and models."""
    return ".".join(CALLED.get(part, part) for part in module.split(".") if part not in LEFT_OUT)


def scaling(config: dict[str, Any], adapter: Path) -> float:
    """The factor of B A; StageError for adapters that do more than add B A."""
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
