"""Bodies of inferences."""

from __future__ import annotations

import json
import sys

import ml_dtypes
import numpy as np
import pytest

from weir_client import ObjectInput, Output, ProtocolError
from weir_client._tensors import (
    JSON_LENGTH,
    datatype_of,
    from_bytes,
    infer_body,
    infer_result,
    to_bytes,
)

ARRAYS = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.5, -65504.0], np.float16),
    "FP32": np.array([0.1, np.inf], np.float32),
    "FP64": np.array([0.1, -1e300], np.float64),
    "BF16": np.array([0.5, -3.0], ml_dtypes.bfloat16),
    "BYTES": np.array([b"", "ü".encode()], np.object_),
}


@pytest.mark.parametrize("datatype", ARRAYS)
def test_elements_of_every_type_come_back(datatype: str) -> None:
    for array in [ARRAYS[datatype], ARRAYS[datatype].reshape(1, 2, 1), ARRAYS[datatype][:0]]:
        assert datatype_of(array) == datatype
        back = from_bytes(datatype, array.shape, to_bytes(array))
        assert back.dtype == array.dtype and back.flags.writeable and back.flags.aligned
        np.testing.assert_array_equal(back, array)


def test_order_of_bytes_and_strides_are_those_of_the_protocol() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert to_bytes(array) == np.array([0, 3, 1, 4, 2, 5], "<i4").tobytes()
    assert datatype_of(array) == "INT32"
    assert to_bytes(np.array(["a", "bc"])) == b"\1\0\0\0a\2\0\0\0bc"
    assert to_bytes(np.float32(1.5).reshape(())) == np.float32(1.5).tobytes()


def test_bf16_becomes_fp32_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    array = from_bytes("BF16", [2], b"\x00\x3f\x40\xc0")
    assert array.dtype == np.float32 and array.tolist() == [0.5, -3.0]


def test_other_types_are_rejected_before_the_request() -> None:
    with pytest.raises(TypeError, match="complex64 is not an element type"):
        infer_body({"x": np.zeros(1, np.complex64)}, None, None, None)
    with pytest.raises(TypeError, match="strings or bytes, not int"):
        infer_body({"x": np.array([1], np.object_)}, None, None, None)


def test_body_has_the_description_and_the_data() -> None:
    inputs = {
        "a": np.array([1, 2], np.uint8),
        "b": ObjectInput("stored", "FP32", [2, 3], offset=8),
        "c": {
            "name": "other",
            "datatype": "BYTES",
            "shape": [1],
            "bytes": 5,
            "digest": "",
            "put_at_ms": 0,
            "expires_at_ms": 0,
        },
    }
    outputs = ["y", Output("z", classification=3), Output("s", object="next", object_bytes=64)]
    body, headers = infer_body(inputs, outputs, "7", 1.5)
    length = int(headers[JSON_LENGTH])
    assert body[length:] == b"\1\2"
    assert json.loads(body[:length]) == {
        "id": "7",
        "parameters": {"binary_data_output": True, "timeout": 1500},
        "inputs": [
            {"name": "a", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
            {
                "name": "b",
                "datatype": "FP32",
                "shape": [2, 3],
                "parameters": {
                    "shared_memory_region": "stored",
                    "shared_memory_byte_size": 24,
                    "shared_memory_offset": 8,
                },
            },
            {
                "name": "c",
                "datatype": "BYTES",
                "shape": [1],
                "parameters": {"shared_memory_region": "other", "shared_memory_byte_size": 5},
            },
        ],
        "outputs": [
            {"name": "y"},
            {"name": "z", "parameters": {"classification": 3}},
            {
                "name": "s",
                "parameters": {"shared_memory_region": "next", "shared_memory_byte_size": 64},
            },
        ],
    }


def test_responses_may_have_elements_in_json() -> None:
    body = (
        b'{"model_name": "m", "model_version": "2", "id": "7", "outputs": ['
        b'{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [null, 2.5]},'
        b'{"name": "s", "datatype": "BYTES", "shape": [1], "data": ["text"]},'
        b'{"name": "stored", "datatype": "FP32", "shape": [1], "parameters": {"shared_memory_region": "o"}}]}'
    )
    result = infer_result({}, body)
    np.testing.assert_array_equal(result["x"], np.array([[np.nan, 2.5]], np.float32))
    assert result["s"].tolist() == [b"text"] and list(result) == ["x", "s"]
    assert (result.model_name, result.model_version, result.id) == ("m", "2", "7")


@pytest.mark.parametrize(
    ("head", "data"),
    [
        (b"not json", b""),
        (b'{"outputs": [{"name": "x"', b""),
        (b'{"outputs": [{"name": "x", "datatype": "FP32", "shape": [2], '
         b'"parameters": {"binary_data_size": 8}}]}', b"1234"),
        (b'{"outputs": [{"name": "x", "datatype": "FP32", "shape": [3], '
         b'"parameters": {"binary_data_size": 4}}]}', b"1234"),
        (b'{"outputs": [{"name": "x", "datatype": "BYTES", "shape": [1], '
         b'"parameters": {"binary_data_size": 5}}]}', b"\x09\0\0\0a"),
        (b'{"outputs": [{"name": "x", "datatype": "FP8", "shape": [1], '
         b'"parameters": {"binary_data_size": 1}}]}', b"1"),
    ],
)
def test_malformed_responses_are_reported(head: bytes, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        infer_result({JSON_LENGTH: str(len(head))}, head + data)
