"""Bodies of inferences, with tensors as arrays of NumPy."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import ProtocolError
from ._response import CallInfo, call_info

if TYPE_CHECKING:
    from .schema import Object

JSON_LENGTH = "inference-header-content-length"

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_DATATYPES = {dtype.newbyteorder("="): name for name, dtype in _DTYPES.items()}

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class ObjectInput:
    """An input whose bytes the node reads from a named object."""

    name: str
    datatype: str
    shape: Sequence[int]
    offset: int = 0
    """First byte of the object that the input reads."""
    byte_size: int | None = None
    """Number of bytes; by default, those of the type and shape."""


@dataclass(frozen=True)
class Output:
    """An output of an inference, if its name alone does not say enough."""

    name: str
    classification: int | None = None
    """Number of largest elements to return, as strings `VALUE:INDEX`, instead of the tensor."""
    object: str | None = None
    """Named object that receives the output, which the response then leaves out."""
    object_bytes: int | None = None
    """Largest size of the object."""


TensorInput: TypeAlias = "ArrayLike | ObjectInput | Object"
"""An array, or a named object: as an `ObjectInput`, or as the client's `objects` describe it."""


class InferResult(Mapping[str, Array]):
    """Outputs of an inference, by their names.

    Strings are `bytes` in an array of objects. A BF16 output has the type of `ml_dtypes` if that
    package is installed, and is converted to FP32 otherwise.
    """

    def __init__(self, description: Mapping[str, Any], outputs: Mapping[str, Array], info: CallInfo) -> None:
        self._outputs = outputs
        self.model_name = str(description.get("model_name", ""))
        self.model_version = str(description.get("model_version", ""))
        self.id: str | None = description.get("id")
        """The id of the request."""
        self.info = info
        """What the node reports about the inference."""
        self.description = description
        """The JSON of the response."""

    def __getitem__(self, name: str) -> Array:
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self.items())
        return f"InferResult({self.model_name}:{self.model_version}, {shapes})"


def datatype_of(array: Array) -> str:
    """Element type of an array, as the protocol names it."""
    if array.dtype.name == "bfloat16":
        return "BF16"
    if array.dtype.kind in "OSU":
        return "BYTES"
    name = _DATATYPES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise TypeError(f"{array.dtype} is not an element type of the protocol; convert it with `astype`")
    return name


def to_bytes(array: Array) -> bytes:
    """Elements of an array in the protocol's binary form."""
    if datatype_of(array) == "BYTES":
        elements = (_element(value) for value in array.flatten().tolist())
        return b"".join(struct.pack("<I", len(element)) + element for element in elements)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _element(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"an array of objects has strings or bytes, not {type(value).__name__}")


def from_bytes(datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """An array of the protocol's binary form. It owns its data."""
    if datatype == "BYTES":
        return _shaped(_strings(memoryview(data)), shape)
    if datatype == "BF16":
        return _shaped(_bfloat16(np.frombuffer(data, "<u2")), shape)
    if datatype not in _DTYPES:
        raise ProtocolError(f"this version of the client does not know the element type {datatype}")
    return _shaped(np.frombuffer(data, _DTYPES[datatype]).copy(), shape)


def _shaped(array: Array, shape: Sequence[int]) -> Array:
    return array.reshape(tuple(shape))


def _strings(data: memoryview) -> Array:
    elements: list[bytes] = []
    while len(data) > 0:
        if len(data) < 4:
            raise ProtocolError("a string of the response is cut off")
        (length,) = struct.unpack_from("<I", data)
        if len(data) < 4 + length:
            raise ProtocolError("a string of the response is cut off")
        elements.append(bytes(data[4 : 4 + length]))
        data = data[4 + length :]
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def _bfloat16(halves: Array) -> Array:
    try:
        import ml_dtypes
    except ImportError:
        # The upper half of an FP32 number.
        return (halves.astype(np.uint32) << 16).view(np.float32)
    array: Array = halves.view(ml_dtypes.bfloat16).copy()
    return array


def infer_body(
    inputs: Mapping[str, TensorInput],
    outputs: Sequence[str | Output] | None,
    id: str | None,
    deadline_ms: float | None,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference."""
    described: list[dict[str, Any]] = []
    data: list[bytes] = []
    for name, value in inputs.items():
        entry, elements = _input(name, value)
        described.append(entry)
        data.append(elements)
    parameters: dict[str, Any] = {"binary_data_output": True}
    if deadline_ms is not None:
        parameters["timeout"] = max(1, round(deadline_ms * 1000))
    head: dict[str, Any] = {"parameters": parameters, "inputs": described}
    if id is not None:
        head["id"] = id
    if outputs is not None:
        head["outputs"] = [_output(output) for output in outputs]
    text = json.dumps(head).encode()
    headers = {"content-type": "application/octet-stream", JSON_LENGTH: str(len(text))}
    return b"".join([text, *data]), headers


def _input(name: str, value: TensorInput) -> tuple[dict[str, Any], bytes]:
    if isinstance(value, Mapping):
        value = ObjectInput(value["name"], value["datatype"], value["shape"], byte_size=value["bytes"])
    if isinstance(value, ObjectInput):
        return _object_input(name, value), b""
    array = np.asarray(value)
    data = to_bytes(array)
    parameters = {"binary_data_size": len(data)}
    return _described(name, datatype_of(array), array.shape, parameters), data


def _object_input(name: str, value: ObjectInput) -> dict[str, Any]:
    size = value.byte_size
    if size is None:
        if value.datatype == "BYTES":
            raise ValueError("an input of strings from an object needs `byte_size`")
        width = 2 if value.datatype == "BF16" else _DTYPES[value.datatype].itemsize
        size = width * int(np.prod(value.shape, dtype=np.int64))
    parameters: dict[str, Any] = {"shared_memory_region": value.name, "shared_memory_byte_size": size}
    if value.offset:
        parameters["shared_memory_offset"] = value.offset
    return _described(name, value.datatype, value.shape, parameters)


def _described(name: str, datatype: str, shape: Sequence[int], parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": parameters}


def _output(output: str | Output) -> dict[str, Any]:
    if isinstance(output, str):
        return {"name": output}
    parameters: dict[str, Any] = {}
    if output.classification is not None:
        parameters["classification"] = output.classification
    if output.object is not None:
        if output.object_bytes is None:
            raise ValueError(f"the output {output.name} into an object needs `object_bytes`")
        parameters["shared_memory_region"] = output.object
        parameters["shared_memory_byte_size"] = output.object_bytes
    return {"name": output.name, "parameters": parameters}


def infer_result(headers: Mapping[str, str], body: bytes) -> InferResult:
    """Reads the response of an inference."""
    try:
        length = int(headers.get(JSON_LENGTH, len(body)))
        description = json.loads(body[:length])
        listed = description["outputs"]
        outputs = dict(_outputs(listed, memoryview(body)[length:]))
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"the response is not one of an inference: {error}") from error
    return InferResult(description, outputs, call_info(headers))


def _outputs(listed: Sequence[Mapping[str, Any]], data: memoryview) -> Iterator[tuple[str, Array]]:
    for output in listed:
        parameters = output.get("parameters", {})
        size = parameters.get("binary_data_size")
        if size is not None:
            if size > len(data):
                raise ValueError(f"the data of {output['name']} is cut off")
            yield output["name"], from_bytes(output["datatype"], output["shape"], data[:size])
            data = data[size:]
        elif "data" in output:
            yield output["name"], _from_json(output)


def _from_json(output: Mapping[str, Any]) -> Array:
    """An array of elements in JSON, in which `null` is a NaN."""
    datatype = output["datatype"]
    if datatype == "BYTES":
        array = np.empty(len(output["data"]), np.object_)
        array[:] = [value.encode() for value in output["data"]]
        return _shaped(array, output["shape"])
    dtype = np.dtype("<f4") if datatype == "BF16" else _DTYPES[datatype]
    values = [np.nan if value is None else value for value in output["data"]]
    return _shaped(np.array(values, dtype), output["shape"])
