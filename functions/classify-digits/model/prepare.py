"""Convert a picture of one digit to the model's input. `../src/prepare.rs` does the same in the function.

Both implementations follow these steps, and `../samples/expected.json` keeps them consistent:

1. grey, 0 to 1;
2. ink is the difference from the border: if the border is brighter than the middle of the range, the picture is inverted;
3. stretch to 0..1 (a range under 1/20 counts as a blank picture);
4. cut out the smallest box with every pixel above `INK`, then the square around its centre whose side is the box's longer side;
5. average the square over 8 x 8 cells, weighing pixels by the area that falls into a cell (outside the picture there is no ink);
6. divide by the largest cell.
"""

import numpy as np

SIDE = 8
INK = 0.3
BLANK = 1 / 20


def prepare(grey: np.ndarray) -> np.ndarray | None:
    """The model's input (8 x 8, 0 to 1, ink is 1) for a grey picture of any size and scale; None
    for a blank picture.
    """
    grey = np.asarray(grey, dtype=np.float64)
    low, high = grey.min(), grey.max()
    if high - low < BLANK:
        return None
    ink = (grey - low) / (high - low)
    if _border_mean(ink) > 0.5:
        ink = 1.0 - ink

    rows = np.flatnonzero((ink > INK).any(axis=1))
    columns = np.flatnonzero((ink > INK).any(axis=0))
    top, bottom = rows[0], rows[-1] + 1
    left, right = columns[0], columns[-1] + 1
    side = max(bottom - top, right - left)
    down = _cell_weights((top + bottom - side) / 2, side, ink.shape[0])
    across = _cell_weights((left + right - side) / 2, side, ink.shape[1])
    cells = down @ ink @ across.T
    return (cells / cells.max()).astype(np.float32)


def _border_mean(ink: np.ndarray) -> float:
    edge = np.ones(ink.shape, dtype=bool)
    edge[1:-1, 1:-1] = False
    return float(ink[edge].mean())


def _cell_weights(start: float, length: float, pixels: int) -> np.ndarray:
    """Overlap of each pixel with each cell when `length` pixels from `start` on become SIDE cells:
    SIDE x pixels, unscaled.
    """
    edges = start + length * np.arange(SIDE + 1) / SIDE
    pixel = np.arange(pixels)
    overlap = np.minimum(edges[1:, None], pixel[None, :] + 1) - np.maximum(edges[:-1, None], pixel[None, :])
    return np.maximum(overlap, 0.0)
