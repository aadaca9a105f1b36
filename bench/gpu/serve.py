#!/usr/bin/env python3
"""Check a running node on a machine with a GPU, at default settings.

    serve.py --weir weir --function infer.wasm live.json MODEL...

Starts `weir up`, pushes the models (the last one a second time, under another name),
deploys a function that runs them, and records:
  results     of inferences on the GPU against the same model on the CPU
  latency     of inferences, directly and through the function, one request at a time
  throughput  at several numbers of connections, each in a process of its own
  cold        the first inference after an unload, beside the size of the weights
  memory      of the device with one model, and with a second model of the same weights
The node's status, usage, metrics and log are saved beside the results. Exits with 1 if a check
failed, and with 2 if the node did not start. Needs only Python 3.8.
"""

import argparse
import http.client
import json
import math
import multiprocessing
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from pathlib import Path

FAILED, NOT_STARTED = 1, 2
STOP_S = 30
# Of a request: the first inference of a model on the CPU prepares it.
REQUEST_S = 120
WARM_UP_REQUESTS = 20
# Largest difference between results of the GPU in tf32 and of the CPU, relative to the largest result.
ERROR_MAX = 0.02
# Size of dynamic dimensions, except the first, which is the batch.
LENGTH = 16
TYPES = {"FP32": "f", "INT64": "q", "INT32": "i"}
CONNECTIONS = (1, 8, 32)


class Node:
    """`weir up` with its default settings, in a temporary folder."""

    def __init__(self, weir, folder):
        self.weir = weir
        self.folder = folder
        self.log = open(folder / "node.log", "wb")
        self.process = subprocess.Popen(
            [weir, "up", "--listen", "127.0.0.1:0", "--data", folder / "data"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=folder,
        )
        line = self.process.stdout.readline().decode()
        found = re.search(r"http://([0-9.]+):(\d+)", line)
        if not found:
            raise RuntimeError(f"the node did not start: {line!r}")
        self.host, self.port = found[1], int(found[2])

    def command(self, *words):
        """Runs a command of `weir` against the node, and returns its output."""
        words = [self.weir, *words, "--url", f"http://{self.host}:{self.port}"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder, timeout=REQUEST_S)
        if done.returncode != 0:
            raise RuntimeError(f"{words[1:4]} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode()

    def connection(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_S)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connection()
        try:
            return request(connection, method, path, body, headers or {})[0]
        finally:
            connection.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None


def request(connection, method, path, body, headers):
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{method} {path}: {response.status} {content[:300]!r}")
    return content, response.headers


def inputs_of(metadata, seed):
    """Random tensors for the inputs of a model: a list of (name, datatype, shape, bytes)."""
    draw = random.Random(seed)
    tensors = []
    for tensor in metadata["inputs"]:
        sizes = [int(size) for size in tensor["shape"]]
        shape = [size if size > 0 else (1 if at == 0 else LENGTH) for at, size in enumerate(sizes)]
        count = math.prod(shape)
        if tensor["datatype"] == "FP32":
            values = array("f", (draw.gauss(0, 1) for _ in range(count)))
        elif tensor["name"] == "input_ids":
            values = array("q", (draw.randrange(1000) for _ in range(count)))
        else:
            values = array(TYPES[tensor["datatype"]], [1 if "mask" in tensor["name"] else 0] * count)
        tensors.append((tensor["name"], tensor["datatype"], shape, values.tobytes()))
    return tensors


def inference(tensors):
    """Body and headers of an inference with binary tensors, in both directions."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(content)}}
        for name, datatype, shape, content in tensors
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(content for _, _, _, content in tensors)
    return body, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}


def first_output(content, headers):
    """The first fp32 output of a response with binary tensors."""
    head_bytes = int(headers["Inference-Header-Content-Length"])
    output = json.loads(content[:head_bytes])["outputs"][0]
    values_bytes = output["parameters"]["binary_data_size"]
    return array("f", content[head_bytes : head_bytes + values_bytes])


def load(host, port, path, body, headers, until, out):
    """Sends requests one after the other until a time, and puts their latencies into a queue."""
    latencies, devices, failures = [], Counter(), Counter()
    connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)
    while time.monotonic() < until:
        began = time.perf_counter()
        try:
            _, got = request(connection, "POST", path, body, headers)
            latencies.append(time.perf_counter() - began)
            devices[got.get("weir-device", "unknown")] += 1
        except (RuntimeError, OSError, http.client.HTTPException) as error:
            failures[f"{type(error).__name__}: {error}"[:200]] += 1
            connection.close()
    out.put((latencies, devices, failures))


def throughput(node, path, body, headers, connections, duration_s):
    out = multiprocessing.Queue()
    until = time.monotonic() + duration_s
    loads = [
        multiprocessing.Process(target=load, args=(node.host, node.port, path, body, headers, until, out))
        for _ in range(connections)
    ]
    for process in loads:
        process.start()
    parts = [out.get(timeout=duration_s + REQUEST_S) for _ in loads]
    for process in loads:
        process.join()
    latencies = [latency for part, _, _ in parts for latency in part]
    failures = sum((part for _, _, part in parts), Counter())
    fields = {"per_s": round(len(latencies) / duration_s, 1), **summary(latencies)}
    fields["devices"] = dict(sum((part for _, part, _ in parts), Counter()))
    if failures:
        fields["failures"] = dict(failures)
    return not failures, fields


def milliseconds(seconds):
    return round(seconds * 1e3, 3)


class Report:
    def __init__(self, path):
        self.path = path
        self.rows = []

    def row(self, what, passed=True, **fields):
        self.rows.append({"what": what, "passed": passed, **fields})
        shown = "  ".join(f"{name} {value}" for name, value in fields.items())
        print(f"{'ok' if passed else 'FAILED':6} {what:44} {shown}", flush=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"rows": self.rows}, indent=1))
        os.replace(partial, self.path)

    def check(self, what, part):
        """Runs a part, and records what it raises."""
        try:
            part()
        except (RuntimeError, OSError, http.client.HTTPException, KeyError, ValueError, subprocess.SubprocessError) as error:
            self.row(what, passed=False, detail=f"{type(error).__name__}: {error}"[:600])


def gpu_status(node):
    """What the node reports of its first GPU."""
    devices = json.loads(node.ask("GET", "/v1/status"))["devices"]
    return next(device for device in devices if device["name"].startswith("cuda"))


def check_model(node, report, path, duration_s):
    name = path.stem.replace("_", "-")
    began = time.perf_counter()
    node.command("models", "push", name, str(path))
    report.row(f"{name}: push", s=round(time.perf_counter() - began, 2), weights_mb=round(path.stat().st_size / 1e6, 1))
    for device in ("cpu", "cuda"):
        node.command("models", "push", f"{name}-{device}", str(path), "--device", device)
    metadata = json.loads(node.ask("GET", f"/v2/models/{name}"))
    target = f"/v2/models/{name}/infer"

    connection = node.connection()
    began = time.perf_counter()
    body, headers = inference(inputs_of(metadata, 0))
    _, got = request(connection, "POST", target, body, headers)
    report.row(f"{name}: first inference", ms=milliseconds(time.perf_counter() - began), device=got["weir-device"])

    worst = 0.0
    on = set()
    for seed in range(4):
        body, headers = inference(inputs_of(metadata, seed))
        gpu = request(connection, "POST", f"/v2/models/{name}-cuda/infer", body, headers)
        cpu = request(connection, "POST", f"/v2/models/{name}-cpu/infer", body, headers)
        on.add((gpu[1]["weir-device"], cpu[1]["weir-device"]))
        found, expected = first_output(*gpu), first_output(*cpu)
        scale = max(map(abs, expected))
        differences = [abs(a - b) for a, b in zip(found, expected)]
        error = max(differences) / scale if len(found) == len(expected) and scale > 0 else math.inf
        worst = max(worst, error if error == error else math.inf)
    report.row(f"{name}: results beside the CPU", worst <= ERROR_MAX, relative_error=f"{worst:.2e}", on=sorted(on))

    latencies = []
    for _ in range(WARM_UP_REQUESTS):
        request(connection, "POST", target, body, headers)
    until = time.monotonic() + duration_s
    while time.monotonic() < until:
        began = time.perf_counter()
        request(connection, "POST", target, body, headers)
        latencies.append(time.perf_counter() - began)
    report.row(f"{name}: one request at a time", **summary(latencies))
    for connections in CONNECTIONS:
        passed, fields = throughput(node, target, body, headers, connections, duration_s)
        report.row(f"{name}: {connections} connections", passed, **fields)

    cold = []
    for _ in range(3):
        node.ask("POST", f"/v2/repository/models/{name}/unload")
        node.ask("POST", f"/v2/repository/models/{name}-cuda/unload")
        began = time.perf_counter()
        _, got = request(connection, "POST", f"/v2/models/{name}-cuda/infer", body, headers)
        cold.append(milliseconds(time.perf_counter() - began))
    report.row(f"{name}: first inference after an unload", ms=cold, device=got["weir-device"])
    connection.close()


def check_function(node, report, wasm, path, duration_s):
    name = path.stem.replace("_", "-")
    metadata = json.loads(node.ask("GET", f"/v2/models/{name}"))
    tensors = inputs_of(metadata, 1)
    node.command("deploy", "infer", str(wasm), "--models", name)
    shape = ",".join(map(str, tensors[0][2]))
    target = f"/fn/infer/{name}?shape={shape}"
    connection = node.connection()
    content, _ = request(connection, "POST", target, tensors[0][3], {})
    direct = first_output(*request(connection, "POST", f"/v2/models/{name}/infer", *inference(tensors)))
    same = array("f", content) == direct
    latencies = []
    until = time.monotonic() + duration_s
    while time.monotonic() < until:
        began = time.perf_counter()
        request(connection, "POST", target, tensors[0][3], {})
        latencies.append(time.perf_counter() - began)
    report.row(f"{name}: through a function", same, same_bytes=same, **summary(latencies))
    for connections in CONNECTIONS:
        passed, fields = throughput(node, target, tensors[0][3], {}, connections, duration_s)
        report.row(f"{name}: through a function, {connections} connections", passed, **fields)


def check_sharing(node, report, path):
    name = path.stem.replace("_", "-")
    used = []
    metadata = json.loads(node.ask("GET", f"/v2/models/{name}"))
    body, headers = inference(inputs_of(metadata, 0))
    for model in (f"{name}-cuda", f"{name}-twin"):
        if model.endswith("twin"):
            node.command("models", "push", model, str(path), "--device", "cuda")
        node.ask("POST", f"/v2/models/{model}/infer", body, headers)
        used.append(gpu_status(node)["used_bytes"])
    report.row(f"{name}: the same weights under two names", used[1] < used[0] * 1.5, used_bytes=used)


def summary(latencies):
    if not latencies:
        return {"requests": 0}
    latencies = sorted(latencies)
    return {
        "p50_ms": milliseconds(statistics.median(latencies)),
        "p99_ms": milliseconds(latencies[int(len(latencies) * 0.99)]),
        "requests": len(latencies),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", type=Path, required=True, metavar="FILE")
    parser.add_argument("--function", type=Path, metavar="FILE", help="functions/infer as a component")
    parser.add_argument("--duration-s", type=float, default=2.0, metavar="S", help="of each measurement (default 2)")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    arguments = parser.parse_args()
    # `finally` stops the node.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    report = Report(arguments.out.resolve())
    models = [path.resolve() for path in arguments.models]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        began = time.perf_counter()
        try:
            node = Node(arguments.weir.resolve(), folder)
        except RuntimeError as error:
            report.row("node: start", passed=False, detail=str(error))
            return save_log(folder, report) or NOT_STARTED
        try:
            report.row("node: start", s=round(time.perf_counter() - began, 2), gpu=gpu_status(node)["kind"])
            for path in models:
                report.check(path.stem, lambda path=path: check_model(node, report, path, arguments.duration_s))
            if arguments.function:
                wasm = arguments.function.resolve()
                # The function takes one tensor; the last model of the kit is ResNet-50.
                report.check("function", lambda: check_function(node, report, wasm, models[-1], arguments.duration_s))
            report.check("sharing", lambda: check_sharing(node, report, models[-1]))
            for name in ("status", "usage"):
                report.check(name, lambda name=name: print(node.command(name), flush=True))
            metrics = lambda: report.path.with_name("metrics.txt").write_bytes(node.ask("GET", "/metrics"))
            report.check("metrics", metrics)
        finally:
            began = time.perf_counter()
            status = node.stop()
            report.row("node: stop", status == 0, status=status, s=round(time.perf_counter() - began, 2))
            save_log(folder, report)
    return 0 if all(row["passed"] for row in report.rows) else FAILED


def save_log(folder, report):
    content = (folder / "node.log").read_bytes()
    report.path.with_name("node.txt").write_bytes(content[-(1 << 20) :])


if __name__ == "__main__":
    sys.exit(main())
