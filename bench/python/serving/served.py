"""Model in ONNX Runtime with one thread per run, for Open Inference Protocol requests with binary
tensors, from bytes to bytes.

All three Python peers use this module, so that they differ only in their request handling.
BENCH_MODEL is the path of the model.
"""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime

HEADER = "inference-header-content-length"
MEDIA_TYPE = "application/octet-stream"

DTYPES = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

# A request or response: the length of its JSON, and the bytes.
Message = tuple[int, bytes]


class Served:
    def __init__(self) -> None:
        path = Path(os.environ["BENCH_MODEL"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.name = path.stem
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def answer(self, request: Message) -> Message:
        """Runs the model on a request."""
        return self._written(self.session.run(self.outputs, _read(request)))

    def answer_together(self, requests: list[Message]) -> list[Message]:
        """Runs the model once on several requests with equal input shapes."""
        if len(requests) == 1:
            return [self.answer(requests[0])]
        inputs = [_read(request) for request in requests]
        together = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
        outputs = self.session.run(self.outputs, together)
        rows = np.cumsum([len(next(iter(each.values()))) for each in inputs])[:-1]
        return [self._written(each) for each in zip(*(np.split(output, rows) for output in outputs))]

    def _written(self, outputs: list[np.ndarray]) -> Message:
        described = [
            {
                "name": name,
                "datatype": DATATYPES[output.dtype],
                "shape": output.shape,
                "parameters": {"binary_data_size": output.nbytes},
            }
            for name, output in zip(self.outputs, outputs)
        ]
        head = {"model_name": self.name, "model_version": "1", "outputs": described}
        text = json.dumps(head, separators=(",", ":")).encode()
        return len(text), b"".join([text, *(output.tobytes() for output in outputs)])


def _read(request: Message) -> dict[str, np.ndarray]:
    """The tensors of a request, as views of its bytes."""
    place, body = request
    tensors = {}
    for tensor in json.loads(body[:place])["inputs"]:
        dtype, size = DTYPES[tensor["datatype"]], tensor["parameters"]["binary_data_size"]
        flat = np.frombuffer(body, dtype, size // dtype.itemsize, place)
        tensors[tensor["name"]] = flat.reshape(tensor["shape"])
        place += size
    return tensors
