"""Runs onnx.backend.test against the node at WEIR_URL, as a client of the Open Inference Protocol.

Prints one line of JSON for each case: {"case": NAME, "outcome": OUTCOME, "why": WHY}. OUTCOME is
"pass" or says what failed. WHY is the message of the node's refusal without the names and numbers of
the case, or empty.
"""

import argparse
import http.client
import json
import os
import re
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

NODE = urllib.parse.urlsplit(os.environ["WEIR_URL"])

# Longest time of a request.
TIMEOUT_S = 120
# Cases that run at once.
AT_ONCE = 4

DATATYPES = {
    np.dtype(np.bool_): "BOOL",
    np.dtype(np.int8): "INT8",
    np.dtype(np.int16): "INT16",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.uint16): "UINT16",
    np.dtype(np.uint32): "UINT32",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.float16): "FP16",
    np.dtype(np.float32): "FP32",
    np.dtype(np.float64): "FP64",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}
TYPES = {name: dtype for dtype, name in DATATYPES.items()}

# What messages say about one case only or about the way out, and its replacements.
SPECIFIC = [
    (r"the model cannot run on device = \"cuda\": ", ""),
    (r"[:;] (run the model on|the model can run on|convert it, or run it on|export it without, or run it on) the CPU", ""),
    (r" \(and \d+ other nodes?\)", ""),
    (r"^node \"[^\"]*\"( is an?|:)? ?", ""),
    (r"^the model has \"[^\"]*\" with elements", "elements"),
    (r" node with name '[^']*'| in node \([^)]*\)", ""),
    (r"/onnxruntime_src/\S*|\S*\([^()]*\)( \[[^]]*\])? (?=\S*layout_)", ""),
    (r"In Node, .*, Error ", ""),
    (r"\b\d+\b", "N"),
]


class Failed(Exception):
    """The outcome of a case that does not pass, and the node's message."""

    def __init__(self, outcome, why=""):
        super().__init__(outcome)
        self.outcome = outcome
        self.why = why


def request(method, path, body=b"", headers=None):
    connection = http.client.HTTPConnection(NODE.hostname, NODE.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def refused(what, headers, status, body):
    try:
        message = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        message = ""
    return Failed(f"{what}: {headers.get('weir-error', status)}", general(message))


def general(message):
    """The message without what is specific to one case, so that it describes all similar cases."""
    for pattern, replacement in SPECIFIC:
        message = re.sub(pattern, replacement, message)
    return " ".join(message.split())


def to_bytes(array):
    """The datatype and the bytes of an array in the protocol's binary form."""
    if array.dtype.kind in "OUS":
        elements = [e if isinstance(e, bytes) else str(e).encode() for e in array.reshape(-1)]
        return "BYTES", b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    datatype = DATATYPES.get(array.dtype)
    if datatype is None:
        raise Failed(f"datatype {array.dtype}")
    return datatype, np.ascontiguousarray(array).tobytes()


def from_bytes(datatype, shape, data):
    if datatype != "BYTES":
        return np.frombuffer(data, TYPES[datatype]).reshape(shape)
    elements = []
    while data:
        length = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return np.array(elements, dtype=object).reshape(shape)


def infer(name, inputs, device):
    described, bodies = [], []
    for input_name, array in inputs.items():
        datatype, data = to_bytes(array)
        described.append(
            {
                "name": input_name,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(data)},
            }
        )
        bodies.append(data)
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    status, headers, body = request(
        "POST",
        f"/v2/models/{name}/infer",
        b"".join([head, *bodies]),
        {"inference-header-content-length": str(len(head))},
    )
    if status != 200:
        raise refused("infer", headers, status, body)
    if device and not headers.get("weir-device", "").startswith(device):
        raise Failed("device")
    length = int(headers["inference-header-content-length"])
    outputs, rest = {}, body[length:]
    for output in json.loads(body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        outputs[output["name"]] = from_bytes(output["datatype"], output["shape"], rest[:size])
        rest = rest[size:]
    return outputs


def compare(wanted, found, case):
    if wanted.dtype.kind in "OUS":
        texts = [e.decode() if isinstance(e, bytes) else str(e) for e in wanted.reshape(-1)]
        if found.shape != wanted.shape or list(found.reshape(-1)) != texts:
            raise Failed("values")
        return
    if found.shape != wanted.shape:
        raise Failed("shape")
    if found.dtype != wanted.dtype:
        raise Failed("type")
    if wanted.dtype == ml_dtypes.bfloat16:
        wanted, found = wanted.astype(np.float32), found.astype(np.float32)
    try:
        np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
    except AssertionError as error:
        raise Failed("values") from error


def read_value(path, kind):
    data = Path(path).read_bytes()
    if not kind.HasField("tensor_type"):
        raise Failed("sequences and optionals")
    tensor = onnx.TensorProto()
    tensor.ParseFromString(data)
    return numpy_helper.to_array(tensor)


def data_sets(case, model):
    """Pairs of inputs and outputs, each by name."""
    inputs = [value for value in model.graph.input]
    outputs = [value for value in model.graph.output]
    if case.data_sets is not None:
        for given, wanted in case.data_sets:
            yield list(zip(inputs, given)), list(zip(outputs, wanted))
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        read = lambda values, kind: [
            (value, read_value(folder / f"{kind}_{place}.pb", value.type))
            for place, value in enumerate(values)
            if (folder / f"{kind}_{place}.pb").exists()
        ]
        yield read(inputs, "input"), read(outputs, "output")


def tensors(pairs):
    arrays = {}
    for value, array in pairs:
        if not value.type.HasField("tensor_type") or isinstance(array, (list, tuple)) or array is None:
            raise Failed("sequences and optionals")
        if isinstance(array, onnx.TensorProto):
            array = numpy_helper.to_array(array)
        arrays[value.name] = np.asarray(array)
    return arrays


def check(case, name, device):
    model = case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")
    sets = [(tensors(given), tensors(wanted)) for given, wanted in data_sets(case, model)]
    for given, wanted in sets:
        for array in [*given.values(), *wanted.values()]:
            to_bytes(array)
    # The default precision on a GPU, tf32, has 10 bits of fp32's 23.
    query = f"?device={device}&precision=fp32" if device else ""
    status, headers, body = request("PUT", f"/v1/models/{name}{query}", model.SerializeToString())
    if status != 200:
        raise refused("push", headers, status, body)
    try:
        for given, wanted in sets:
            found = infer(name, given, device)
            for output, array in wanted.items():
                if output not in found:
                    raise Failed("output missing")
                compare(array, found[output], case)
    finally:
        request("DELETE", f"/v1/models/{name}")


def run(case, name, device):
    outcome, why = "pass", ""
    try:
        check(case, name, device)
    except Failed as failed:
        outcome, why = failed.outcome, failed.why
    except (OSError, http.client.HTTPException) as error:
        # The node is gone or hangs, which is never expected.
        outcome = f"connection: {type(error).__name__}"
    return {"case": case.name, "outcome": outcome, "why": why}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="run each Nth case in the order of names")
    parser.add_argument("--device", default="", help="kind of device that must run the models")
    arguments = parser.parse_args()
    kinds = ["node", "simple", "pytorch-converted", "pytorch-operator"]
    cases = {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}
    chosen = [cases[name] for name in sorted(cases)][:: arguments.every]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(run, case, f"case-{n}", arguments.device) for n, case in enumerate(chosen)]
        for finished in runs:
            print(json.dumps(finished.result()), flush=True)


main()
