"""One table of corrections: SQL computes what `train` does, and the docs show the bounds that both use."""

from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.building.weather import build_run
from train.objective.correction import (
    effective_sample_size,
    importance_weights,
    k3,
    off_policy_mask,
    veto_mask,
)
from warehouse.sql.corrections import CORRECTIONS, DROPS
from warehouse.sql.database import connect, rows_of


def test_k3_of_small_log_ratios_keeps_its_digits_in_float32():
    small = torch.tensor([1e-5, -1e-4, 1e-3])
    exact = [ratio ** 2 / 2 + ratio ** 3 / 6 for ratio in small.double().tolist()]
    assert k3(small).tolist() == pytest.approx(exact, rel=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("runs") / "run", shape="mismatch", iterations=8, evals=())


@pytest.fixture(scope="module")
def connection(run):
    return connect(run)


@pytest.fixture(scope="module")
def stored(run):
    """Padded pi_old, mu, mask and advantages of the rows that iteration 7 trained on."""
    mu = {(row["task_id"], row["sample_index"]): row["behaviour_logprobs"]
          for row in run.read("completions", iteration=7, purpose="train").to_pylist()}
    rows = run.read("train_samples", iteration=7).to_pylist()
    def padded(values):
        return pad_sequence([torch.tensor(row, dtype=torch.float64) for row in values], batch_first=True)
    old = padded([row["old_logprobs"] for row in rows])
    mask = padded([[1.0] * len(row["old_logprobs"]) for row in rows])
    behaviour = padded([mu[row["task_id"], row["sample_index"]] for row in rows])
    return old, behaviour, mask, torch.tensor([row["advantage"] for row in rows])


def correct(name, low, high, old, behaviour, mask, advantages):
    """Weights and kept tokens as `train` has them."""
    if name in DROPS:
        dropped = (veto_mask(old - behaviour, mask, threshold=low) if name == "veto" else
                   off_policy_mask(old, behaviour, advantages, mask, threshold=high))
        kept = ~dropped[:, None].expand_as(mask)
        return kept.double(), kept
    return importance_weights(old - behaviour, mask, correction=name, low=low, high=high)


TIGHT = {"veto": (0.6, None), "off-policy": (None, 0.01), "none": (None, None), "bypass": (None, None),
         "token-truncate": (0.9, 1.1), "sequence-truncate": (None, 1.5)}


@pytest.mark.parametrize("bounds", ["usual", "tight"])
@pytest.mark.parametrize("name", [*CORRECTIONS, *DROPS])
def test_sql_weighs_stored_rows_as_train_does(connection, stored, name, bounds):
    usual = {**CORRECTIONS, **DROPS}[name]
    low, high = (usual.low, usual.high) if bounds == "usual" else TIGHT.get(name, (0.98, 1.02))
    query = f"FROM whatif(7, '{name}'" + "".join(
        f", {side} := {bound}" for side, bound in (("low", low), ("high", high))
        if bound is not None and bounds == "tight") + ")"
    outcome, = rows_of(connection, query)
    weights, kept = correct(name, low, high, *stored)
    mask, advantages = stored[2].bool(), stored[3]
    assert outcome["kept_fraction"] == pytest.approx(float(kept[mask].double().mean()))
    assert outcome["importance_weight_mean"] == pytest.approx(float(weights[mask].mean()))
    assert outcome["weight_ess"] == pytest.approx(
        float(weights[mask].sum() ** 2 / (mask.sum() * weights[mask].square().sum())))
    for side, chosen in (("positive", advantages > 0), ("negative", advantages < 0)):
        assert outcome[f"weight_{side}"] == pytest.approx(float(weights[chosen][mask[chosen]].mean()))
    if name == "none":
        assert effective_sample_size((stored[0] - stored[1])[mask]) < outcome["weight_ess"] == 1


def test_the_macro_corrections_lists_them_all_in_order(connection):
    listed = [row["correction"] for row in rows_of(connection, "FROM corrections(7)")]
    assert listed == [*CORRECTIONS, *DROPS]


def test_the_docs_show_the_bounds_that_are_used():
    page = (Path(__file__).parents[3] / "docs" / "corrections.md").read_text()
    for name, correction in {**CORRECTIONS, **DROPS}.items():
        bounds = " .. ".join(f"{bound:g}" for bound in (correction.low, correction.high) if bound is not None)
        line, = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        assert line.endswith(f"| {bounds} |" if bounds else "| |"), name
