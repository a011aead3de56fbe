"""Spills: what is saved often costs little, and is all there again after a kill."""

from pathlib import Path
from typing import Any

from rollout.parts import MOST_FILES, Spill
from warehouse.store.parts import spills_of
from warehouse.store.schema import arrow_schema


def row(sample: int, length: int, finish_reason: str | None) -> dict[str, Any]:
    return dict.fromkeys(arrow_schema("completions").names) | {
        "task_id": "t", "sample_index": sample, "completion_ids": list(range(length)),
        "num_completion_tokens": length, "finish_reason": finish_reason}


def test_each_save_adds_a_file_until_one_takes_the_place_of_many(tmp_path: Path) -> None:
    part, wanted = tmp_path / "part-00000.parquet", [("t", sample) for sample in range(100)]
    spill = Spill(part, wanted, {}, {})
    for length in range(1, 21):
        spill.add(row(99, length, None))
        spill.save()
    assert len(spills_of(part)) == 20
    again = Spill(part, wanted, {}, {})
    assert again.drawn["t", 99]["num_completion_tokens"] == 20 and not again.rows
    for sample in range(60):
        spill.add(row(sample, 5, "stop"))
        spill.save()
        assert len(spills_of(part)) <= MOST_FILES
    again = Spill(part, wanted, {}, {})
    assert again.rows.keys() == {("t", sample) for sample in range(60)} and again.drawn.keys() == {("t", 99)}
    again.save()
    assert spills_of(part) == sorted(spill.files)        # nothing was new
    spill.remove()
    assert not spills_of(part)
