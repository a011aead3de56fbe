"""Flash-attention 3 is taken where it is installed and the GPU is one that it is for."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import attention

from train.model.flash import use_flash_attention_3
from warehouse.store.errors import StageError

GPU = torch.device("cuda")


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A function that puts a module flash_attn_interface there, and returns which kernels get activated."""
    def install(text, capability=(9, 0)):
        (tmp_path / "flash_attn_interface.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        handle = SimpleNamespace(remove=lambda: None)
        monkeypatch.setattr(attention._fa3, "_fa3_register_kernels", lambda: handle)
        return attention.current_flash_attention_impl
    yield install
    sys.modules.pop("flash_attn_interface", None)       # else a GPU's tests after these take it for real
    attention.restore_flash_attention_impl(_raise_warn=False)


REGISTERS = """
import torch
library = torch.library.Library("flash_attn_3", "FRAGMENT")
for name in ("fwd", "bwd"):
    library.define(f"{name}(Tensor q) -> Tensor")
"""


def test_a_hopper_gpu_takes_it_once(installed):
    active = installed(REGISTERS)
    assert active() is None
    use_flash_attention_3(GPU)
    assert active() == "FA3"
    use_flash_attention_3(GPU)
    assert active() == "FA3"


def test_another_gpu_does_not(installed):
    active = installed("raise AssertionError", capability=(8, 0))
    use_flash_attention_3(GPU)
    assert active() is None


def test_a_build_for_another_torch_ends_in_a_sentence(installed):
    active = installed("raise ImportError('undefined symbol: aoti_torch_shim')")
    with pytest.raises(StageError, match=r"loaded: undefined symbol: aoti_torch_shim\. Install"):
        use_flash_attention_3(GPU)
    assert active() is None
