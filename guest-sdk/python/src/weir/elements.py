"""Element types of tensors, and the corresponding Python types."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError

from weir._wit import tensors
from weir.errors import InvalidArgument

# Both tensors and WebAssembly are little-endian, so buffers are copied unchanged.
assert sys.byteorder == "little", "weir needs a little-endian machine"

#: Element types of the Open Inference Protocol: ``ElementType.FP32``, ``ElementType.UINT8``,
#: ``ElementType.BYTES``, ...
ElementType = tensors.ElementType

# Type codes of the standard library's `array`, which has none for half floats.
_CODES = {
    ElementType.UINT8: "B",
    ElementType.UINT16: "H",
    ElementType.UINT32: "I",
    ElementType.UINT64: "Q",
    ElementType.INT8: "b",
    ElementType.INT16: "h",
    ElementType.INT32: "i",
    ElementType.INT64: "q",
    ElementType.FP32: "f",
    ElementType.FP64: "d",
}
_UNSIGNED = {1: ElementType.UINT8, 2: ElementType.UINT16, 4: ElementType.UINT32, 8: ElementType.UINT64}
_SIGNED = {1: ElementType.INT8, 2: ElementType.INT16, 4: ElementType.INT32, 8: ElementType.INT64}
_FLOATS = {2: ElementType.FP16, 4: ElementType.FP32, 8: ElementType.FP64}

# Types that can represent the dimensions of a nested list.
_NESTED = (list, tuple, range, array)

_LENGTH = Struct("<I")


def name(element_type: ElementType) -> str:
    """Name of the type as in WIT."""
    return element_type.name.lower()


def of(wanted: ElementType | str) -> ElementType:
    """Converts a type or its name to an element type."""
    if isinstance(wanted, ElementType):
        return wanted
    found = ElementType.__members__.get(wanted.upper()) if isinstance(wanted, str) else None
    if found is None:
        raise InvalidArgument(f"{wanted!r} is no element type; there are: {', '.join(map(name, ElementType))}")
    return found


def of_buffer(view: memoryview) -> ElementType:
    """Element type of a buffer."""
    code = view.format.lstrip("@=<")
    if code == "?":
        return ElementType.BOOL
    for codes, types in (("BHILQNc", _UNSIGNED), ("bhilqn", _SIGNED), ("efd", _FLOATS)):
        if len(code) == 1 and code in codes and view.itemsize in types:
            return types[view.itemsize]
    raise InvalidArgument(f"a buffer with elements of the format {view.format!r} is no tensor")


def of_values(values: Sequence) -> ElementType:
    """The element type that can hold all of ``values``: bool, int64, fp32 or bytes."""
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    if not kinds or kinds <= {int, float} and float in kinds:
        return ElementType.FP32
    if kinds == {bool}:
        return ElementType.BOOL
    if kinds == {int}:
        return ElementType.INT64
    if kinds <= {str, bytes}:
        return ElementType.BYTES
    raise InvalidArgument(f"values of {', '.join(sorted(kind.__name__ for kind in kinds))} are no tensor: give an element type")


def flat(values: object) -> tuple[list, tuple[int, ...]]:
    """Flattens nested lists to their values and shape; the shape of a single value is ``()``."""
    if isinstance(values, (int, float, str, bytes)):
        return [values], ()
    level = list(values)
    shape = [len(level)]
    while any(issubclass(kind, _NESTED) for kind in set(map(type, level))):
        if not all(isinstance(value, _NESTED) for value in level):
            raise InvalidArgument("the lists are ragged: there is a value beside a list")
        lengths = sorted(set(map(len, level)))
        if len(lengths) > 1:
            raise InvalidArgument(f"the lists are ragged: one of {lengths[0]} is beside one of {lengths[-1]}")
        shape += lengths
        level = [value for values in level for value in values]
    return level, tuple(shape)


def pack(values: Sequence, element_type: ElementType) -> bytes:
    """Encodes ``values`` as tensor data."""
    try:
        if element_type in _CODES:
            return array(_CODES[element_type], values).tobytes()
        if element_type is ElementType.BOOL:
            return bytes(map(bool, values))
        if element_type is ElementType.FP16:
            return Struct(f"<{len(values)}e").pack(*values)
        if element_type is ElementType.BF16:
            return _narrow(array("f", values))
        return _join(values)
    except (TypeError, ValueError, OverflowError, StructError) as error:
        raise InvalidArgument(f"the values do not fit {name(element_type)}: {error}") from None


def unpack(data: bytes, element_type: ElementType) -> array:
    """Decodes tensor data: booleans as 0 and 1, half floats widened."""
    if element_type is ElementType.BYTES:
        raise InvalidArgument("the tensor holds bytes and not numbers")
    if element_type is ElementType.FP16:
        return array("f", Struct(f"<{len(data) // 2}e").unpack(data))
    if element_type is ElementType.BF16:
        return _widen(data)
    values = array(_CODES.get(element_type, "B"))
    values.frombytes(data)
    return values


def split(data: bytes) -> list[bytes]:
    """Decodes byte strings: each is prefixed with its length as four bytes."""
    strings, at = [], 0
    while at < len(data):
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, at)[0] if start <= len(data) else len(data) + 1
        if end > len(data):
            raise InvalidArgument(f"string {len(strings)} ends early")
        strings.append(data[start:end])
        at = end
    return strings


def _join(values: Sequence) -> bytes:
    parts = []
    for value in values:
        value = value.encode() if isinstance(value, str) else bytes(memoryview(value))
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def _narrow(values: array) -> bytes:
    # The upper half of each, rounded to nearest, ties to even.
    bits = array("I", values.tobytes())
    return array("H", [_rounded(value) for value in bits]).tobytes()


def _rounded(bits: int) -> int:
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40  # NaN stays NaN.
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def _widen(data: bytes) -> array:
    values = array("f")
    values.frombytes(array("I", [value << 16 for value in array("H", data)]).tobytes())
    return values
