"""The estimator of mismatch, and the bounds of corrections as the docs show them."""

from pathlib import Path

import pytest
import torch

from train.objective.correction import k3
from train.objective.loss_table import CORRECTIONS


def test_k3_of_small_log_ratios_keeps_its_digits_in_float32():
    small = torch.tensor([1e-5, -1e-4, 1e-3])
    exact = [ratio ** 2 / 2 + ratio ** 3 / 6 for ratio in small.double().tolist()]
    assert k3(small).tolist() == pytest.approx(exact, rel=1e-3)


def test_the_docs_show_the_bounds_that_are_used():
    page = (Path(__file__).parents[3] / "docs" / "corrections.md").read_text()
    for name, usual in CORRECTIONS.items():
        bounds = " .. ".join(f"{bound:g}" for bound in usual if bound is not None)
        line, = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        assert line.endswith(f"| {bounds} |" if bounds else "| |"), name
