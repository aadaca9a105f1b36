"""Tensors, and collections of named tensors."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from weir import _math, elements
from weir._handles import Handle
from weir._wit import tensors
from weir.elements import ElementType
from weir.errors import InvalidArgument, from_node

#: Marks a dimension to be inferred from the number of elements.
OPEN = -1


class Tensor(Handle):
    """A dense, row-major tensor on the node. Its data enters guest memory only when it is read.

    ::

        Tensor([1.0, 2.0, 3.0, 4.0], (2, 2))         # fp32
        Tensor([[1.0, 2.0], [3.0, 4.0]])             # the same
        Tensor(array("B", [1, 2, 3]))                # typed by its buffer: array, bytes, memoryview, numpy
        Tensor(["a", "b"])                           # byte strings
        Tensor([1, 2], element_type="int8")     # or ElementType.INT8

    ``values`` is a sequence, nested or flat, anything with the buffer protocol, or one value.
    ``shape`` is the size of each dimension, outermost first; ``()`` is a scalar, and one dimension
    may be -1. Without a shape, the tensor has the shape of the values. Raises
    :class:`~weir.InvalidArgument` if shape and values do not match, and
    :class:`~weir.ResourceExhausted` above the function's limit of tensor bytes.

    ``+``, ``-``, ``*`` and ``/`` combine tensors of one type and shape, or a tensor and a number. The
    result has the type of the tensors, and ``fp32`` for ``/`` of integers, and for integers with a
    float. Arithmetic copies the numbers into guest memory and runs in Python: leave work on large
    tensors to models.

    Released with its last reference, or at the end of a ``with`` block.
    """

    __slots__ = ()

    def __init__(
        self, values: object, shape: Sequence[int] | None = None, element_type: ElementType | str | None = None
    ) -> None:
        element_type = element_type and elements.of(element_type)
        if isinstance(values, str) and shape is None:
            raise InvalidArgument("a string alone is no tensor: give a list, or the shape () for a scalar")
        view = _view(values)
        if view is not None and element_type in (None, elements.of_buffer(view)):
            element_type, data, count = elements.of_buffer(view), view.tobytes(), view.nbytes // view.itemsize
            given = view.shape
        else:
            flat, given = elements.flat(_listed(view, values, element_type))
            element_type = element_type or elements.of_values(flat)
            data, count = elements.pack(flat, element_type), len(flat)
        super().__init__(_make(element_type, _filled(given if shape is None else shape, count), data))

    @classmethod
    def from_bytes(cls, element_type: ElementType | str, shape: Sequence[int], data: bytes) -> Tensor:
        """Creates a tensor from a copy of ``data``, little-endian and row-major."""
        return cls._of(_make(elements.of(element_type), list(shape), bytes(data)))

    @classmethod
    def _of(cls, raw: tensors.Tensor) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._held = raw
        return tensor

    @property
    def element_type(self) -> ElementType:
        """Element type."""
        return self._raw.element_type()

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension, outermost first."""
        return tuple(self._raw.shape())

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self._raw.byte_length()

    def tobytes(self) -> bytes:
        """Copies the data into guest memory unchanged: little-endian, row-major."""
        with from_node():
            return self._raw.read(0, self._raw.byte_length())

    def array(self, wanted: ElementType | str | None = None) -> array:
        """Copies all numbers into guest memory, flat: booleans as 0 and 1, half floats widened to
        ``f``.

        Raises :class:`~weir.InvalidArgument` if the numbers are not of the type ``wanted``.
        """
        kind = self.element_type
        if wanted is not None and elements.of(wanted) is not kind:
            raise InvalidArgument(f"the tensor holds {elements.name(kind)} and not {elements.name(elements.of(wanted))}")
        return elements.unpack(self.tobytes(), kind)

    def read(self, start: int, stop: int) -> array:
        """Copies the numbers from ``start`` up to ``stop``, counted in row-major order: for
        example, one row of a large output.
        """
        kind = self.element_type
        size = self.nbytes // max(prod(self.shape), 1)
        with from_node():
            return elements.unpack(self._raw.read(start * size, max(stop - start, 0) * size), kind)

    def strings(self) -> list[str]:
        """Copies all strings into guest memory."""
        try:
            return [string.decode() for string in self.byte_strings()]
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the tensor holds bytes that are no text: {error}") from None

    def byte_strings(self) -> list[bytes]:
        """Copies all byte strings into guest memory."""
        if self.element_type is not ElementType.BYTES:
            raise InvalidArgument(f"the tensor holds {elements.name(self.element_type)} and not bytes")
        return elements.split(self.tobytes())

    def tolist(self) -> object:
        """Copies all elements into lists, nested according to the shape; a scalar becomes its
        value.
        """
        kind = self.element_type
        flat = self.strings() if kind is ElementType.BYTES else self.array().tolist()
        if kind is ElementType.BOOL:
            flat = [value != 0 for value in flat]
        return _nested(flat, self.shape) if self.shape else flat[0]

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """A copy with another shape: ``reshape(1, -1)`` or ``reshape((1, -1))``. One dimension may be
        -1.
        """
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Tensor.from_bytes(self.element_type, _filled(sizes, prod(self.shape)), self.tobytes())

    def argmax(self, axis: int | None = None) -> int | Tensor:
        """The index of the largest number, counted in row-major order: the class of a classifier's
        scores. With an ``axis``, the indices along it, as an int64 tensor without that dimension.
        """
        values = self.array()
        if axis is None:
            return _math.largest(values)
        shape = self.shape
        axis = _math.axis_of(axis, shape)
        indices = [_math.largest(values[row]) for row in _math.rows(shape, axis)]
        return Tensor(indices, shape[:axis] + shape[axis + 1 :], ElementType.INT64)

    def softmax(self, axis: int = -1) -> Tensor:
        """The probabilities for scores along ``axis``: positive, with the sum 1. Of integers, fp32."""
        kind, shape, values = _math.softmax_type(self.element_type), self.shape, self.array()
        result = [0.0] * len(values)
        for row in _math.rows(shape, _math.axis_of(axis, shape)):
            result[row] = _math.softmax(values[row])
        return Tensor(result, shape, kind)

    def topk(self, count: int) -> list:
        """The ``count`` largest numbers along the last axis, each as ``(index, value)``, largest first:
        a list for one dimension, and nested lists like those of :meth:`tolist` for more.
        """
        shape, values = self.shape, self.array()
        axis = _math.axis_of(-1, shape)
        best = [_math.topk(values[row], count) for row in _math.rows(shape, axis)]
        return _nested(best, shape[:axis]) if axis > 0 else best[0] if best else []

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._computed(operator.add, other)

    def __radd__(self, other: float) -> Tensor:
        return self._computed(operator.add, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._computed(operator.sub, other)

    def __rsub__(self, other: float) -> Tensor:
        return self._computed(operator.sub, other, is_right=True)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._computed(operator.mul, other)

    def __rmul__(self, other: float) -> Tensor:
        return self._computed(operator.mul, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._computed(operator.truediv, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._computed(operator.truediv, other, is_right=True)

    def __neg__(self) -> Tensor:
        # Not 0 - x, which loses the sign of zero.
        return self._computed(operator.mul, -1)

    def _computed(self, operation: _math.Operation, other: Tensor | float, is_right: bool = False) -> Tensor:
        if isinstance(other, Tensor):
            if other.shape != self.shape:
                raise InvalidArgument(f"the shapes {self.shape} and {other.shape} differ")
            kind, operand = _math.result_type(operation, self.element_type, other.element_type), other.array()
        elif isinstance(other, (int, float)):
            kind, operand = _math.result_type(operation, self.element_type, other), other
        else:
            return NotImplemented
        sides = (operand, self.array()) if is_right else (self.array(), operand)
        try:
            results = _math.computed(operation, *sides)
        except OverflowError as error:
            raise InvalidArgument(f"the operand does not fit {elements.name(kind)}: {error}") from None
        if kind is ElementType.FP16:
            results = list(map(_math.half, results))
        return Tensor(results, self.shape, kind)

    def __buffer__(self, flags: int) -> memoryview:
        """A copy of the numbers as a buffer, for ``memoryview(tensor)`` and
        ``numpy.asarray(tensor)``.

        Works from Python 3.12 on, and so in every component; with earlier versions, use
        :meth:`array`. The buffer of a scalar or of an empty tensor has one dimension.
        """
        code = self.array()
        return memoryview(code).cast("B").cast(code.typecode, self.shape) if self.shape and code else memoryview(code)

    def __repr__(self) -> str:
        if self._held is None:
            return "<Tensor closed>"
        return f"<Tensor {elements.name(self.element_type)} {list(self.shape)}>"


class Tensors(dict[str, Tensor]):
    """Named tensors in order: the outputs of a model, or the inputs of a tensor function."""

    def __missing__(self, name: str) -> Tensor:
        raise InvalidArgument(f"there is no tensor {name}; there are: {', '.join(self)}")

    def only(self) -> Tensor:
        """The only tensor."""
        if len(self) != 1:
            raise InvalidArgument(f"there are {', '.join(self) or 'no tensors'} where one tensor is expected")
        return next(iter(self.values()))


def from_pairs(pairs: Iterable[tuple[str, tensors.Tensor]]) -> Tensors:
    """Wraps tensors that the node returned."""
    return Tensors((name, Tensor._of(raw)) for name, raw in pairs)


def to_pairs(named: Mapping[str, Tensor], what: str = "the inputs") -> list[tuple[str, tensors.Tensor]]:
    """Converts named tensors to the node's format."""
    if not isinstance(named, Mapping):
        raise TypeError(f"{what} are of {type(named).__name__}: give tensors by name, as in {{'x': Tensor(...)}}")
    for name, tensor in named.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} have the name {name!r}, which is of {type(name).__name__} and not str")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of {type(tensor).__name__} and not a Tensor")
    return [(name, tensor._raw) for name, tensor in named.items()]


def outputs_to_pairs(named: Mapping[str, Tensor]) -> list[tuple[str, tensors.Tensor]]:
    """Converts the outputs of a tensor function, which transfers them to the node. Each tensor may
    appear only once.
    """
    pairs, names = to_pairs(named, "the outputs"), {}
    for name, raw in pairs:
        if names.setdefault(id(raw), name) != name:
            raise ValueError(f"{names[id(raw)]} and {name} are the same tensor: give it under one name, or a copy of it")
    return pairs


def _nested(flat: list, shape: Sequence[int]) -> list:
    """``flat`` in lists of ``shape``."""
    for at in range(len(shape) - 1, 0, -1):
        size = shape[at]
        flat = [flat[row * size : (row + 1) * size] for row in range(prod(shape[:at]))]
    return flat


def _listed(view: memoryview | None, values: object, element_type: ElementType | None) -> object:
    """``values`` as lists, if they are in a buffer."""
    if view is None or element_type is ElementType.BYTES and isinstance(values, bytes):
        return values
    return view.tolist()


def _make(element_type: ElementType, shape: list[int], data: bytes) -> tensors.Tensor:
    if any(not 0 <= size < 1 << 32 for size in shape):
        raise InvalidArgument(f"a dimension of {shape} is below 0, or 2^32 or more")
    with from_node():
        return tensors.Tensor.from_bytes(element_type, shape, data)


def _view(values: object) -> memoryview | None:
    try:
        view = memoryview(values)
    except TypeError:
        return None
    return view if view.contiguous else memoryview(view.tobytes()).cast(view.format, view.shape)


def _filled(shape: Sequence[int], count: int) -> list[int]:
    """``shape`` with its open dimension inferred, if ``count`` elements fit."""
    sizes = [int(size) for size in shape]
    if sizes.count(OPEN) == 1:
        rest = prod(size for size in sizes if size != OPEN)
        if rest > 0 and count % rest == 0:
            sizes[sizes.index(OPEN)] = count // rest
    if min(sizes, default=0) < 0 or prod(sizes) != count:
        raise InvalidArgument(f"{count} elements do not fill the shape {tuple(shape)}")
    return sizes
