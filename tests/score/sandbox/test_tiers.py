"""Which tier is chosen when a layer is missing, refused, or does not hold."""

import pytest

from score.isolation.lockdown import Layer
from score.sandbox import tiers
from score.sandbox.limits import Limits
from score.sandbox.tiers import missing_for, open_lanes
from warehouse.store.errors import StageError


def chosen(wanted: str | None = None, *, unsafe: bool = False) -> tuple[str, Layer, dict[str, str]]:
    pool, tier = open_lanes(wanted, unsafe=unsafe, limits=Limits(), num_lanes=1)
    pool.close()
    return tier.name, tier.layers, tier.facts["not_available"]


def test_the_best_tier_is_taken_and_lanes_are_never_root():
    name, layers, _reasons = chosen()
    assert name == next(letter for letter in "ABC" if missing_for(tiers.TIERS[letter][0]) is None)
    assert Layer.UNPRIVILEGED in layers and Layer.SECCOMP in layers


def test_where_namespaces_are_refused_the_next_tier_is_taken(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false")
    name, layers, reasons = chosen()
    assert name == "B" and Layer.BUBBLEWRAP not in layers
    assert "A lane for running programs could not start" in reasons["A"]
    with pytest.raises(StageError, match=r"cannot be isolated on this machine \(A: "):
        chosen("A")


def test_without_landlock_seccomp_alone_is_taken(monkeypatch):
    monkeypatch.setattr("score.isolation.landlock.version", lambda: 0)
    name, layers, reasons = chosen()
    assert name == "C" and Layer.LANDLOCK not in layers and "no Landlock" in reasons["B"]


def test_a_tier_whose_canaries_die_is_not_taken(monkeypatch):
    monkeypatch.setattr(tiers, "reached_effects", lambda pool: ["fork", "write a file"])
    with pytest.raises(StageError, match="C: a program could fork, write a file"):
        chosen()
    assert chosen(unsafe=True)[0] == "D"
