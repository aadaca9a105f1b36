"""Greyscale pictures from PNGs or from numbers. Grey is fp32, as in `../classify-digits`, and
rounded at every step.
"""

from __future__ import annotations

from array import array
from math import inf
from struct import Struct

import png

#: Largest number of pixels of a picture: 2048 x 2048.
PIXELS_MAX = 1 << 22

_FP32 = Struct("<f")


class PictureError(Exception):
    """Reason why the input is not a picture. The text is for the client."""


class TooLarge(PictureError):
    """The picture has more pixels than `PIXELS_MAX`."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(f"the picture has {width} x {height} pixels; at most {PIXELS_MAX} in all are taken")


def fp32(value: float) -> float:
    """Rounds `value` to fp32."""
    return _FP32.unpack(_FP32.pack(value))[0]


class Picture:
    """Greyscale pixels from 0 to 1, row by row; at least one pixel."""

    def __init__(self, width: int, grey: array) -> None:
        self.width, self.height, self.grey = width, len(grey) // width, grey

    @classmethod
    def from_png(cls, body: bytes) -> Picture:
        """Decodes a PNG of any colour type. Transparent pictures get a background that contrasts
        with the drawing.
        """
        try:
            reader = png.Reader(bytes=body)
            reader.preamble()
            if reader.width * reader.height > PIXELS_MAX:
                raise TooLarge(reader.width, reader.height)
            width, _, rows, info = reader.asDirect()
            samples = [sample for row in rows for sample in row]
        except PictureError:
            raise
        except Exception as error:  # Damaged data can raise any exception in the decoder.
            raise PictureError(f"this is not a PNG that can be read: {error}") from None
        samples, planes = _bytes(samples, info["bitdepth"]), info["planes"]
        drawn = [samples[plane::planes] for plane in range(planes)]
        alpha = [UNIT[value] for value in drawn.pop()] if info["alpha"] else None
        grey = [UNIT[value] for value in drawn[0]] if len(drawn) == 1 else list(map(luma, *drawn))
        return cls(width, array("f", grey if alpha is None else on_paper(grey, alpha)))

    @classmethod
    def from_rows(cls, rows: list[list[float]]) -> Picture:
        """Creates a picture from rows of grey. Values up to 1 are used unchanged; if there are
        larger values, the largest counts as 1.
        """
        width = len(rows[0]) if rows else 0
        if width == 0:
            raise PictureError("`pixels` is empty")
        if width * len(rows) > PIXELS_MAX:
            raise TooLarge(width, len(rows))
        for at, row in enumerate(rows):
            if len(row) != width:
                raise PictureError(f"row {at} of `pixels` has {len(row)} numbers and the first row has {width}")
            if not all(0 <= value < inf for value in row):
                raise PictureError(f"row {at} of `pixels` has a number that is negative or not finite")
        try:
            grey = array("f", [value for row in rows for value in row])
        except OverflowError:
            raise PictureError("`pixels` holds a number that is too large") from None
        largest = max(1.0, max(grey))
        return cls(width, array("f", [value / largest for value in grey]))


#: Grey value of each byte.
UNIT = array("f", [value / 255 for value in range(256)])
_RED, _GREEN, _BLUE = array("f", [0.299, 0.587, 0.114])


def luma(red: int, green: int, blue: int) -> float:
    """Perceived brightness of a colour (ITU-R BT.601)."""
    first = fp32(fp32(_RED * UNIT[red]) + fp32(_GREEN * UNIT[green]))
    return fp32(first + fp32(_BLUE * UNIT[blue]))


def on_paper(grey: list[float], alpha: list[float]) -> list[float]:
    """Composes the drawing on a white background if it is dark, and on black if it is light."""
    inked = [fp32(value * opaque) for value, opaque in zip(grey, alpha)]
    paper = 1.0 if sum(inked) < sum(alpha) * 0.5 else 0.0
    return [value + paper * fp32(1.0 - opaque) for value, opaque in zip(inked, alpha)]


def _bytes(samples: list[int], depth: int) -> list[int]:
    if depth > 8:
        return [sample >> 8 for sample in samples]
    return [sample * 255 // ((1 << depth) - 1) for sample in samples]
