"""Converts a picture of one digit, of any size, to the model's input. The result equals that of
`../classify-digits/src/prepare.rs` bit by bit.
"""

from __future__ import annotations

from math import ceil, floor

from picture import Picture, fp32

#: Side of the model's input, in pixels.
SIDE = 8
# Ink threshold for cropping, from 0 to 1.
INK = fp32(0.3)
# A picture with a smaller range of grey is blank.
BLANK = fp32(1 / 20)


def prepare(picture: Picture) -> list[float] | None:
    """Crops the digit, scales it to `SIDE` x `SIDE` and stretches its contrast; None for a blank
    picture.

    The picture's border determines whether the drawing is dark on light or light on dark.
    """
    ink = ink_of(picture)
    if ink is None:
        return None
    columns = extent(max(column) for column in zip(*ink))
    rows = extent(max(row) for row in ink)
    side = max(columns[1] - columns[0], rows[1] - rows[0])
    across, down = Cells(columns, side, picture.width), Cells(rows, side, picture.height)
    cells = [0.0] * (SIDE * SIDE)
    for y, heights in down.shares:
        for x, widths in across.shares:
            value = ink[y][x]
            for row, height in heights:
                for column, width in widths:
                    cells[row * SIDE + column] += value * height * width
    most = max(cells)
    return [cell / most for cell in cells]


def ink_of(picture: Picture) -> list[list[float]] | None:
    """The picture's rows as ink from 0 to 1."""
    grey, width = picture.grey, picture.width
    low, high = min(grey), max(grey)
    if fp32(high - low) < BLANK:
        return None
    scale = fp32(1.0 / fp32(high - low))

    def rows(offset: float, scale: float) -> list[list[float]]:
        ink = [fp32(offset + fp32(scale * value)) for value in grey]
        return [ink[at : at + width] for at in range(0, len(ink), width)]

    ink = rows(fp32(-low * scale), scale)
    return rows(fp32(high * scale), -scale) if border_mean(ink) > 0.5 else ink


def border_mean(ink: list[list[float]]) -> float:
    total, count = 0.0, 0
    for y, row in enumerate(ink):
        step = 1 if y in (0, len(ink) - 1) else max(len(row) - 1, 1)
        for value in row[::step]:
            total += value
            count += 1
    return fp32(total / count)


def extent(most) -> tuple[int, int]:
    """The first line with ink, and the line after the last. They exist: the stretch makes the
    largest value 1.
    """
    inked = [at for at, value in enumerate(most) if value > INK]
    return inked[0], inked[-1] + 1


class Cells:
    """One dimension of the model's input, mapped to the picture's pixels."""

    def __init__(self, extent: tuple[int, int], side: int, pixels: int) -> None:
        self._start = (extent[0] + extent[1] - side) / 2
        self._length = side / SIDE
        first, end = floor(max(self._start, 0.0)), ceil(max(self._start + self._length * SIDE, 0.0))
        #: Each pixel that overlaps a cell, and its cells with the length of the overlap.
        self.shares = [(pixel, self._over(pixel)) for pixel in range(first, min(end, pixels))]

    def _over(self, pixel: int) -> list[tuple[int, float]]:
        left, right = pixel - self._start, pixel + 1.0 - self._start
        first = floor(max(left / self._length, 0.0))
        end = min(ceil(max(right / self._length, 0.0)), SIDE)
        covered = (
            (cell, min(right, (cell + 1) * self._length) - max(left, cell * self._length))
            for cell in range(first, end)
        )
        return [(cell, length) for cell, length in covered if length > 0]
