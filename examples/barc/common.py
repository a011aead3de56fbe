"""What programs after BARC (arXiv 2411.02272) import: grids are arrays indexed [x, y], 0 is the background.

Our own code, from the published names and meanings; `--allow-import common --import-path examples/barc`.
"""

from collections import deque

import numpy as np


class Color:
    """The ten colours of ARC by name."""

    BLACK, BLUE, RED, GREEN, YELLOW, GREY, PINK, ORANGE, TEAL, MAROON = range(10)
    GRAY, PURPLE, BROWN, TRANSPARENT, BACKGROUND = GREY, TEAL, MAROON, BLACK, BLACK
    ALL_COLORS, NOT_BLACK = tuple(range(10)), tuple(range(1, 10))


STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def neighbours(connectivity):
    """Steps to the cells that touch one: by sides (4), or by corners as well (8)."""
    return STRAIGHT if connectivity == 4 else STRAIGHT + DIAGONAL


def is_inside(grid, x, y):
    """Whether a cell is one of the grid's."""
    return 0 <= x < grid.shape[0] and 0 <= y < grid.shape[1]


def reach(start, belongs, grid, connectivity):
    """The cells that are connected to one by cells that belong."""
    seen, waiting = {start}, deque([start])
    while waiting:
        x, y = waiting.popleft()
        for dx, dy in neighbours(connectivity):
            cell = (x + dx, y + dy)
            if cell not in seen and is_inside(grid, *cell) and belongs(*cell):
                seen.add(cell)
                waiting.append(cell)
    return seen


def flood_fill(grid, x, y, color, connectivity=4):
    """Paint, in place, the area of one colour that holds a cell."""
    old = grid[x, y]
    for cell in reach((x, y), lambda a, b: grid[a, b] == old, grid, connectivity):
        grid[cell] = color


def draw_line(grid, x, y, end_x=None, end_y=None, length=None, color=None, direction=None, stop_at_color=()):
    """Paint a line in place: to an end, or in a direction up to a length, the edge or a colour."""
    if direction is None:
        steps = max(abs(end_x - x), abs(end_y - y))
        direction, length = (np.sign(end_x - x), np.sign(end_y - y)), steps + 1
    while is_inside(grid, x, y) and (length is None or length > 0) and grid[x, y] not in stop_at_color:
        grid[x, y] = color
        if tuple(direction) == (0, 0):
            break
        x, y, length = x + int(direction[0]), y + int(direction[1]), None if length is None else length - 1
    return grid


def find_connected_components(grid, background=Color.BLACK, connectivity=4, monochromatic=True):
    """Grids of the same shape, each with one connected object on the background."""
    found, seen = [], set()
    for x, y in zip(*np.nonzero(grid != background), strict=True):
        if (x, y) not in seen:
            color = grid[x, y]
            same = grid == color if monochromatic else grid != background
            cells = reach((x, y), lambda a, b, same=same: same[a, b], grid, connectivity)
            seen |= cells
            component = np.full_like(grid, background)
            for cell in cells:
                component[cell] = grid[cell]
            found.append(component)
    return found


def blit_sprite(grid, sprite, x=0, y=0, background=Color.BLACK):
    """Put a sprite into a grid in place, its upper left corner at a cell; its background is transparent."""
    for dx, dy in zip(*np.nonzero(sprite != background), strict=True):
        if is_inside(grid, x + dx, y + dy):
            grid[x + dx, y + dy] = sprite[dx, dy]
    return grid


def blit(grid, sprite, x=0, y=0, background=None):
    """The same; without a background every cell of the sprite is put."""
    if background is not None:
        return blit_sprite(grid, sprite, x, y, background)
    for (dx, dy), color in np.ndenumerate(sprite):
        if is_inside(grid, x + dx, y + dy):
            grid[x + dx, y + dy] = color
    return grid


def blit_object(grid, obj, background=Color.BLACK):
    """Put an object where it stands in a grid of its own."""
    return blit_sprite(grid, obj, 0, 0, background)


def bounding_box(grid, background=Color.BLACK):
    """x, y, width and height of all that is no background; zeros where there is nothing."""
    xs, ys = np.nonzero(grid != background)
    if not len(xs):
        return 0, 0, 0, 0
    return int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1


def bounding_box_mask(grid, background=Color.BLACK):
    """True in the bounding box."""
    x, y, width, height = bounding_box(grid, background)
    mask = np.zeros(grid.shape, bool)
    mask[x:x + width, y:y + height] = True
    return mask


def crop(grid, background=Color.BLACK):
    """The grid's bounding box as a grid."""
    x, y, width, height = bounding_box(grid, background)
    return grid[x:x + width, y:y + height]


def translate(obj, x, y, background=Color.BLACK):
    """The object moved; what leaves the grid is lost."""
    return blit_sprite(np.full_like(obj, background), obj, x, y, background)


def object_position(obj, background=Color.BLACK, anchor="upper left"):
    """Where an object's bounding box has an anchor: upper left, center, lower right and so on."""
    x, y, width, height = bounding_box(obj, background)
    words = anchor.replace("centre", "center").split()
    across = 1.0 if "right" in words else 0.0 if "left" in words else 0.5
    down = 1.0 if "lower" in words else 0.0 if "upper" in words else 0.5
    at = x + across * (width - 1), y + down * (height - 1)
    return tuple(int(place) if place == int(place) else place for place in at)


def object_colors(obj, background=Color.BLACK):
    """The object's colours."""
    return [int(color) for color in np.unique(obj) if color != background]


def object_interior(grid, background=Color.BLACK):
    """True inside of the object and on it: what the background cannot reach from the edge."""
    around = np.pad(grid, 1, constant_values=background)
    outside = np.zeros(around.shape, bool)
    for cell in reach((0, 0), lambda a, b: around[a, b] == background, around, 4):
        outside[cell] = True
    return ~outside[1:-1, 1:-1]


def object_neighbors(grid, background=Color.BLACK, connectivity=4):
    """True on background that touches the object."""
    mask = np.zeros(grid.shape, bool)
    for x, y in zip(*np.nonzero(grid != background), strict=True):
        for dx, dy in neighbours(connectivity):
            if is_inside(grid, x + dx, y + dy) and grid[x + dx, y + dy] == background:
                mask[x + dx, y + dy] = True
    return mask


def object_boundary(grid, background=Color.BLACK):
    """True on cells of the filled object that touch what is outside of it."""
    inside = object_interior(grid, background)
    around = np.pad(inside, 1)
    kept = np.ones(grid.shape, bool)
    for dx, dy in STRAIGHT + DIAGONAL:
        kept &= around[1 + dx:1 + dx + grid.shape[0], 1 + dy:1 + dy + grid.shape[1]]
    return inside & ~kept


def cells_of(obj, x, y, background):
    """The cells of an object that is put at a place."""
    return {(int(a) + x, int(b) + y) for a, b in zip(*np.nonzero(obj != background), strict=True)}


def collision(_=None, object1=None, object2=None, x1=0, y1=0, x2=0, y2=0, background=Color.BLACK):
    """Whether two objects at their places share a cell."""
    return bool(cells_of(object1, x1, y1, background) & cells_of(object2, x2, y2, background))


def contact(_=None, object1=None, object2=None, x1=0, y1=0, x2=0, y2=0, background=Color.BLACK,
            connectivity=4):
    """Whether two objects touch or share a cell."""
    first, second = cells_of(object1, x1, y1, background), cells_of(object2, x2, y2, background)
    return bool(first & second) or any((a + dx, b + dy) in second
                                       for a, b in first for dx, dy in neighbours(connectivity))


def is_contiguous(bitmask, background=Color.BLACK, connectivity=4):
    """Whether all that is no background is one connected object."""
    return len(find_connected_components(bitmask, background, connectivity, monochromatic=False)) == 1


def detect_objects(grid, _=None, predicate=None, background=Color.BLACK, monochromatic=False,
                   connectivity=None, allowed_dimensions=None, colors=None, can_overlap=False):
    """Connected objects of some sizes and colours for which the predicate, if any, holds of their crops."""
    kinds = [connectivity] if connectivity else [4, 8]
    found: list[np.ndarray] = []
    for kind in kinds:
        for obj in find_connected_components(grid, background, kind, monochromatic):
            sprite = crop(obj, background)
            if ((allowed_dimensions is None or sprite.shape in {tuple(each) for each in allowed_dimensions})
                    and (colors is None or set(object_colors(obj, background)) <= set(colors))
                    and (predicate is None or predicate(sprite))
                    and (not any(np.array_equal(obj, other) for other in found) if can_overlap
                         else not any(collision(object1=obj, object2=other, background=background)
                                      for other in found))):
                found.append(obj)
    return found


def scale_sprite(sprite, factor):
    """Every cell as a square of cells."""
    return np.kron(sprite, np.ones((factor, factor), dtype=sprite.dtype))


def scale_pattern(pattern, scale_factor):
    """The same under its other name."""
    return scale_sprite(pattern, scale_factor)


class TranslationalSymmetry:
    """Moves a cell by (translate_x, translate_y)."""

    def __init__(self, translate_x, translate_y):
        self.translate_x, self.translate_y = translate_x, translate_y

    def apply(self, x, y, iters=1):
        """The cell after `iters` moves."""
        return x + iters * self.translate_x, y + iters * self.translate_y


class MirrorSymmetry:
    """Mirrors a cell at the column mirror_x and at the row mirror_y; None leaves that one as it is."""

    def __init__(self, mirror_x, mirror_y):
        self.mirror_x, self.mirror_y = mirror_x, mirror_y

    def apply(self, x, y, iters=1):
        """The cell after `iters` reflections."""
        if iters % 2:
            x = x if self.mirror_x is None else int(2 * self.mirror_x - x)
            y = y if self.mirror_y is None else int(2 * self.mirror_y - y)
        return x, y


class RotationalSymmetry:
    """Turns a cell by a quarter about (center_x, center_y)."""

    def __init__(self, center_x, center_y):
        self.center_x, self.center_y = center_x, center_y

    def apply(self, x, y, iters=1):
        """The cell after `iters` quarter turns."""
        for _ in range(iters % 4):
            x, y = self.center_x - (y - self.center_y), self.center_y + (x - self.center_x)
        return int(x), int(y)


def pairs_kept(grid, symmetry, ignore_colors):
    """How many pairs of cells a symmetry maps on the same colour; 0 if any pair differs."""
    count = 0
    for x, y in np.argwhere(~np.isin(grid, ignore_colors)):
        other = symmetry.apply(int(x), int(y))
        if other == (x, y) or not is_inside(grid, *other) or grid[other] in ignore_colors:
            continue
        if grid[other] != grid[x, y]:
            return 0
        count += 1
    return count


def detect_translational_symmetry(grid, ignore_colors=(Color.BLACK,), background=None):
    """The shortest translation that keeps the grid, and the shortest in another direction."""
    ignored = [*ignore_colors, *([] if background is None else [background])]
    width, height = grid.shape
    moves = sorted(((dx, dy) for dx in range(width) for dy in range(-height + 1, height)
                    if dx > 0 or dy > 0), key=lambda move: (abs(move[0]) + abs(move[1]), move[1] < 0, move))
    found: list = []
    for dx, dy in moves:
        parallel = any(dx * each.translate_y == dy * each.translate_x for each in found)
        if not parallel and pairs_kept(grid, TranslationalSymmetry(dx, dy), ignored):
            found.append(TranslationalSymmetry(dx, dy))
        if len(found) == 2:
            break
    return found


def detect_mirror_symmetry(grid, ignore_colors=(Color.BLACK,), background=None):
    """Mirrors that keep the grid, those that map most cells on others first."""
    ignored = [*ignore_colors, *([] if background is None else [background])]
    mirrors = [*(MirrorSymmetry(x / 2, None) for x in range(1, 2 * grid.shape[0] - 2)),
               *(MirrorSymmetry(None, y / 2) for y in range(1, 2 * grid.shape[1] - 2))]
    kept = [(pairs_kept(grid, each, ignored), each) for each in mirrors]
    return [each for count, each in sorted(kept, key=lambda pair: -pair[0]) if count]


def detect_rotational_symmetry(grid, ignore_colors=(Color.BLACK,), background=None):
    """The quarter turn that keeps the grid and maps most cells on others, or None."""
    ignored = [*ignore_colors, *([] if background is None else [background])]
    width, height = grid.shape
    # Both halves or neither: else a cell would land between cells.
    turns = [RotationalSymmetry(x / 2, y / 2) for x in range(1, 2 * width - 2)
             for y in range(1, 2 * height - 2) if x % 2 == y % 2]
    count, best = max(((pairs_kept(grid, turn, ignored), turn) for turn in turns), key=lambda pair: pair[0],
                      default=(0, None))
    return best if count else None


def orbit(grid, x, y, symmetries):
    """Every cell of the grid that symmetries, applied again and again, map a cell on, itself first."""
    found, waiting = [(x, y)], [(x, y)]
    while waiting:
        cell = waiting.pop(0)
        for symmetry in symmetries:
            for iters in (1, -1):
                other = symmetry.apply(*cell, iters=iters)
                if is_inside(grid, *other) and other not in found:
                    found.append(other)
                    waiting.append(other)
    return found
