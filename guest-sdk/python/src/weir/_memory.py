"""In-memory implementation of the ``weir:inference`` bindings of componentize-py, for use outside
components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import prod
from types import SimpleNamespace
from typing import Any

#: Models by name, as functions of raw tensors by name. :mod:`weir.testing` fills it.
MODELS: dict[str, SimpleNamespace] = {}
#: Named objects. They do not expire.
OBJECTS: dict[str, Tensor] = {}
#: The decoder of images, a function of encoded bytes and options. :mod:`weir.testing` sets it.
DECODERS: list[Callable[[bytes, Any], Tensor]] = []

#: The servers of outbound requests, as functions of a sent request to the status, the headers and the
#: body of its response. :mod:`weir.testing` sets it.
SERVERS: list[Callable[[Any], tuple[int, list[tuple[str, str]], bytes]]] = []

_SIZES = dict.fromkeys(("BOOL", "UINT8", "INT8"), 1)
_SIZES |= dict.fromkeys(("UINT16", "INT16", "FP16", "BF16"), 2)
_SIZES |= dict.fromkeys(("UINT32", "INT32", "FP32"), 4)
_SIZES |= dict.fromkeys(("UINT64", "INT64", "FP64"), 8)

ElementType = Enum(
    "ElementType",
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 BF16 FP32 FP64 BYTES",
    start=0,
)


@dataclass(frozen=True)
class Err(Exception):
    """An error of the node."""

    value: Any


def _case(name: str, *fields: tuple[str, type]) -> type:
    return type(name, (SimpleNamespace,), {"__init__": lambda self, *values: self.__dict__.update(zip(fields, values))})


_TEXTS = ("InvalidArgument", "NotFound", "NotGranted", "ResourceExhausted", "Unavailable", "Internal")
_CASES = {f"Error_{name}": _case(name, "value") for name in _TEXTS}
_CASES |= {f"Error_{name}": _case(name) for name in ("DeadlineExceeded", "Cancelled")}


class _Resource:
    def __exit__(self, *failure: object) -> None:
        pass


class Tensor(_Resource):
    """A tensor."""

    def __init__(self, element_type: ElementType, shape: list[int], data: bytes) -> None:
        self._parts = element_type, shape, data

    @classmethod
    def from_bytes(cls, element_type: ElementType, shape: list[int], data: bytes) -> Tensor:
        size = _SIZES.get(element_type.name)
        if size is not None and prod(shape) * size != len(data):
            raise invalid(f"{len(data)} bytes do not fill the shape {shape}")
        return cls(element_type, shape, data)

    def element_type(self) -> ElementType:
        return self._parts[0]

    def shape(self) -> list[int]:
        return self._parts[1]

    def byte_length(self) -> int:
        return len(self._parts[2])

    def read(self, offset: int, length: int) -> bytes:
        if offset + length > self.byte_length():
            raise invalid(f"{offset} and {length} bytes go past {self.byte_length()}")
        return self._parts[2][offset : offset + length]


class Pending(_Resource):
    """A run, which finishes when it starts."""

    def __init__(self, run: Callable[[], list[tuple[str, Tensor]]]) -> None:
        self._run = run

    def wait(self) -> list[tuple[str, Tensor]]:
        run, self._run = self._run, _taken
        return run()

    def cancel(self) -> None:
        self._run = _cancelled


class Model(_Resource):
    """A model provided by a test."""

    def __init__(self, entry: SimpleNamespace) -> None:
        self._entry = entry

    @classmethod
    def open(cls, name: str) -> Model:
        entry = MODELS.get(name.partition(":")[0])
        if entry is None:
            raise Err(_CASES["Error_NotFound"](f"there is no model {name}; weir.testing.model provides one"))
        return cls(entry)

    def describe(self) -> SimpleNamespace:
        return self._entry.description

    def infer(self, inputs: list, options: Any) -> list[tuple[str, Tensor]]:
        outputs = self._entry.run(inputs)
        if options is None or options.outputs is None:
            return outputs
        found = dict(outputs)
        return [(name, found[name]) for name in options.outputs]

    def submit(self, inputs: list, options: Any) -> Pending:
        return Pending(lambda: self.infer(inputs, options))


def _put(name: str, value: Tensor, ttl_ms: int | None) -> None:
    if ttl_ms == 0:
        raise invalid("an object is kept for 1 ms at least")
    OBJECTS[name] = value


def _get(name: str) -> Tensor:
    if name not in OBJECTS:
        raise Err(_CASES["Error_NotFound"](f"there is no object {name}"))
    return OBJECTS[name]


def _delete(name: str) -> None:
    _get(name)
    del OBJECTS[name]


def _decode(encoded: Tensor, options: Any) -> Tensor:
    if not DECODERS:
        raise Err(_CASES["Error_Unavailable"]("a node decodes images; weir.testing.images provides a decoder"))
    return DECODERS[-1](encoded.read(0, encoded.byte_length()), options)


_SIGNATURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WEBP"}


def _inspect(encoded: Tensor) -> SimpleNamespace:
    data = encoded.read(0, encoded.byte_length())
    for signature, name in _SIGNATURES.items():
        if data.startswith(signature):
            *_, height, width = _decode(encoded, None).shape()
            return SimpleNamespace(format=Format[name], width=width, height=height)
    raise invalid("the data is no JPEG, PNG or WebP image")


def invalid(text: str) -> Err:
    """An error for an invalid argument."""
    return Err(_CASES["Error_InvalidArgument"](text))


def _taken() -> list[tuple[str, Tensor]]:
    raise invalid("the outputs were taken before")


def _cancelled() -> list[tuple[str, Tensor]]:
    raise Err(_CASES["Error_Cancelled"]())


tensors = SimpleNamespace(ElementType=ElementType, Tensor=Tensor, **_CASES)
models = SimpleNamespace(
    Model=Model,
    Pending=Pending,
    Options=lambda outputs, deadline_ms, priority: SimpleNamespace(outputs=outputs),
)
objects = SimpleNamespace(put=_put, get=_get, delete=_delete)
Format = Enum("Format", "JPEG PNG WEBP", start=0)
image = SimpleNamespace(
    Format=Format,
    Fit=Enum("Fit", "FILL COVER CONTAIN INSIDE OUTSIDE", start=0),
    Filter=Enum("Filter", "NEAREST BILINEAR BICUBIC LANCZOS", start=0),
    Channels=Enum("Channels", "RGB BGR GREY", start=0),
    Layout=Enum("Layout", "NCHW NHWC", start=0),
    Size=lambda width, height: SimpleNamespace(width=width, height=height),
    Resize=lambda to, fit, filter: SimpleNamespace(to=to, fit=fit, filter=filter),
    Colour=lambda red, green, blue: SimpleNamespace(red=red, green=green, blue=blue),
    Options=SimpleNamespace,
    decode=_decode,
    inspect=_inspect,
)
