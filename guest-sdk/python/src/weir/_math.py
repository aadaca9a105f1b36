"""Arithmetic on the numbers of tensors, without numpy."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from itertools import repeat
from math import copysign, exp, inf, isnan, nan, prod

from weir import elements
from weir.elements import ElementType
from weir.errors import InvalidArgument

_FLOATS = {ElementType.FP16, ElementType.BF16, ElementType.FP32, ElementType.FP64}
#: The least number that fp16 rounds to infinity.
_FP16_OVERFLOW = 65520
_NO_NUMBERS = {ElementType.BOOL, ElementType.BYTES}

Operation = Callable[[float, float], float]


def divide(left: float, right: float) -> float:
    """Division of IEEE 754, which has results for zero."""
    try:
        return left / right
    except ZeroDivisionError:
        return nan if left == 0 or isnan(left) else copysign(inf, left) * copysign(1, right)


def half(value: float) -> float:
    """``value`` in the range of fp16: infinity beyond it, as IEEE 754 rounds."""
    return copysign(inf, value) if abs(value) >= _FP16_OVERFLOW else value


def computed(operation: Operation, left: Sequence | float, right: Sequence | float) -> list:
    """``operation`` on pairs of numbers. One side may be a single number."""
    pair = [repeat(side) if isinstance(side, (int, float)) else side for side in (left, right)]
    if operation is operator.truediv:
        try:
            return list(map(operation, *pair))
        except ZeroDivisionError:
            operation = divide
    return list(map(operation, *pair))


def result_type(operation: Operation, left: ElementType, right: ElementType | float) -> ElementType:
    """The element type of a result: that of the operands, or fp32 for a division of integers and for
    integers with a float.
    """
    if left in _NO_NUMBERS:
        raise InvalidArgument(f"the tensor holds {elements.name(left)} and not numbers")
    if isinstance(right, ElementType) and right is not left:
        raise InvalidArgument(f"the tensors hold {elements.name(left)} and {elements.name(right)}")
    if left in _FLOATS or operation is not operator.truediv and not isinstance(right, float):
        return left
    return ElementType.FP32


def axis_of(axis: int, shape: Sequence[int]) -> int:
    """``axis`` counted from the outermost dimension."""
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgument(f"the shape {tuple(shape)} has no axis {axis}")
    return axis % len(shape)


def rows(shape: Sequence[int], axis: int) -> Iterator[slice]:
    """The positions of the numbers along ``axis``, for each position of the other dimensions."""
    step = prod(shape[axis + 1 :])
    length = shape[axis] * step
    for start in range(0, prod(shape), max(length, 1)):
        for at in range(start, start + step):
            yield slice(at, start + length, step)


def largest(values: array) -> int:
    """The index of the first largest number; that of the first NaN if there is one."""
    if not values:
        raise InvalidArgument("an empty tensor has no largest number")
    if values.typecode in "fd" and isnan(sum(values)):
        # The sum is also NaN if there are both infinities.
        for index, value in enumerate(values):
            if isnan(value):
                return index
    return values.index(max(values))


def softmax(values: Sequence[float]) -> list[float]:
    """Positive numbers with the sum 1, in the proportions of the exponentials of ``values``."""
    top = max(values)
    powers = [exp(value - top) for value in values]
    total = sum(powers)
    return [power / total for power in powers]


def topk(values: Sequence[float], count: int) -> list[tuple[int, float]]:
    """The indices and values of the largest numbers, largest first; of equal ones, the first. NaN comes
    before all numbers, as in :func:`largest`.
    """
    if count < 0:
        raise InvalidArgument(f"the count is a whole number, and not {count}")

    def rank(index: int) -> tuple[bool, float]:
        value = values[index]
        return (True, 0) if isnan(value) else (False, value)

    return [(index, values[index]) for index in nlargest(count, range(len(values)), key=rank)]


def softmax_type(kind: ElementType) -> ElementType:
    """The element type of the result of softmax."""
    return result_type(operator.truediv, kind, 1)
