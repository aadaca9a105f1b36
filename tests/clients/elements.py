"""Tensors of every element type of the protocol, and helpers for comparing responses."""

import ml_dtypes
import numpy as np

ELEMENTS = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 1, 65535], np.uint16),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-32768, 0, 32767], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "FP16": np.array([0.5, -2.0, 65504.0], np.float16),
    "FP32": np.array([0.1, -2.5, 3e38], np.float32),
    "FP64": np.array([0.1, -2.5, 1e300], np.float64),
    "BF16": np.array([0.5, -2.0, 3.0], ml_dtypes.bfloat16),
    "BYTES": np.array(["", "ü", "text"], np.object_),
}

# Classes of the rows [1, 0, 0, 0] and [-1, 0, 0, 0] by the model `animals`.
CLASSES = [
    "2.000000:2:long: dog", "1.000000:1", "0.000000:0:cat",
    "0.000000:0:cat", "-1.000000:1", "-2.000000:2:long: dog",
]


def values(array):
    """The elements as a list, with strings normalised."""
    return [v.decode() if isinstance(v, bytes) else v for v in array.flatten().tolist()]
