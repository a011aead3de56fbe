"""Files deleted in a whole run: some of what `make chaos` damages."""

from tests.chaos.losses import damage_all


def test_a_loss_is_said_and_mended_or_a_copy_is_asked_for() -> None:
    kinds = "prompts/.*=N/part|^train/.*=N/manifest|^completions/.*pruned-X/manifest"
    assert damage_all(0, kinds, names="deleted") == (3, [])
