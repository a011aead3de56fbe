"""The module that programs after BARC import: what its functions mean, and that lanes reach it."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from score.isolation.lockdown import Layer
from score.protocol.frames import JobKind, decode_grids, encode_grids, split_result
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Program

FOLDER = Path(__file__).parents[3] / "examples" / "barc"
GRID = np.array([[0, 1, 1, 0], [0, 0, 1, 0], [2, 0, 0, 3], [2, 0, 3, 0]])


@pytest.fixture(scope="module")
def common() -> Any:
    spec = importlib.util.spec_from_file_location("common", FOLDER / "common.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_objects_are_found_cut_out_and_moved(common: Any) -> None:
    assert len(common.find_connected_components(GRID)) == 4
    objects = common.find_connected_components(GRID, connectivity=8)
    assert [common.object_colors(each) for each in objects] == [[1], [2], [3]]
    assert common.bounding_box(objects[0]) == (0, 1, 2, 2)
    assert common.crop(objects[0]).tolist() == [[1, 1], [0, 1]]
    assert common.translate(objects[0], 2, -1).tolist() == [[0] * 4, [0] * 4, [1, 1, 0, 0], [0, 1, 0, 0]]
    assert common.object_position(objects[0], anchor="lower right") == (1, 2)
    assert len(common.detect_objects(GRID, colors=[1, 2], connectivity=4)) == 2
    assert common.bounding_box(np.zeros((2, 2), int)) == (0, 0, 0, 0)


def test_paint_lines_sprites_and_insides(common: Any) -> None:
    grid = np.zeros((4, 4), int)
    common.draw_line(grid, 0, 0, end_x=3, end_y=3, color=common.Color.TEAL)
    common.draw_line(grid, 0, 1, color=1, direction=(1, 0), stop_at_color=[8])
    assert grid.tolist() == [[8, 1, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8]]
    common.flood_fill(grid, 3, 0, 4)
    assert (grid == 4).sum() == 6
    ring = np.array([[5, 5, 5], [5, 0, 5], [5, 5, 5]])
    assert common.object_interior(ring).all() and not common.object_boundary(ring)[1, 1]
    assert common.blit(np.ones((3, 3), int), ring)[1, 1] == 0
    assert common.blit_sprite(np.ones((3, 3), int), ring)[1, 1] == 1
    assert common.scale_sprite(np.array([[1, 2]]), 2).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2]]
    near, far = np.array([[1, 0, 0]]), np.array([[0, 0, 1]])
    assert common.contact(object1=near, object2=far, y2=-1)
    assert not common.contact(object1=near, object2=far)


def test_what_is_hidden_is_restored_by_the_symmetry_of_the_rest(common: Any) -> None:
    draw = np.random.default_rng(0)
    corner, tile = draw.integers(1, 10, (5, 5)), draw.integers(1, 10, (3, 4))
    half = np.concatenate([corner, corner[::-1]])
    turned = np.block([[corner, np.rot90(corner, -1)], [np.rot90(corner), np.rot90(corner, 2)]])
    for whole, detect in ((np.concatenate([half, half[:, ::-1]], axis=1), common.detect_mirror_symmetry),
                          (turned, lambda grid: [common.detect_rotational_symmetry(grid)]),
                          (np.tile(tile, (4, 3)), common.detect_translational_symmetry)):
        grid = whole.copy()
        grid[1:3, 2:4] = 0
        symmetries, restored = detect(grid), grid.copy()
        for x, y in np.argwhere(grid == 0):
            seen = [grid[cell] for cell in common.orbit(grid, int(x), int(y), symmetries) if grid[cell]]
            restored[x, y] = seen[0]
        assert (restored == whole).all()
    assert common.detect_rotational_symmetry(corner) is None
    assert common.TranslationalSymmetry(1, 2).apply(0, 0, iters=3) == (3, 6)
    assert common.MirrorSymmetry(1.5, None).apply(0, 7) == (3, 7)
    assert common.RotationalSymmetry(1, 1).apply(0, 0) == (2, 0)


def test_programs_import_it_from_a_folder_named_as_seen_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parents[1])
    source = ("from common import *\nimport numpy as np\n\ndef transform(grid):\n"
              "    return crop(find_connected_components(grid)[0])\n")
    config = LaneConfig(Layer.SECCOMP, imports=("common",), import_paths=("examples/barc",))
    with LanePool(config, Limits(), 1) as pool:
        (_, [ending]), = pool.run([Program(JobKind.GRID, source, encode_grids([GRID.astype(np.uint8)]))])
    status, body = split_result(ending.result)
    assert (status, decode_grids(body)[0].tolist()) == (1, [[1, 1], [0, 1]])
