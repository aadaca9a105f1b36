"""Baseline without a server: ONNX Runtime in a loop, with one thread.

    python in_process.py --model M.onnx --body B.f32 --seconds 3    # prints the measurements as JSON
    python in_process.py --model M.onnx --body B.f32 --answer       # writes the model's output as bytes
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from model import Model

WARM_UP_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a model in this process.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--body", type=Path, required=True, help="the input as raw fp32")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--answer", action="store_true", help="write the output and nothing else")
    arguments = parser.parse_args()
    model, body = Model(arguments.model), arguments.body.read_bytes()
    if arguments.answer:
        sys.stdout.buffer.write(model.answer(body))
        return
    run(model, body, WARM_UP_SECONDS)
    busy = busy_seconds()
    wall, cpu = time.perf_counter(), time.process_time()
    times = run(model, body, arguments.seconds)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    busy = busy_seconds() - busy
    p50, p99 = np.percentile(times, [50, 99]) * 1e6
    figures = {
        "requests": len(times),
        "seconds": wall,
        "p50_us": p50,
        "p99_us": p99,
        "cpu_us_per_request": cpu * 1e6 / len(times),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "others_share": max(0.0, busy - cpu) / (wall * (os.cpu_count() or 1)),
    }
    json.dump(figures, sys.stdout)


def run(model: Model, body: bytes, seconds: float) -> list[float]:
    """Measures the time of each run."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        model.answer(body)
        times.append(time.perf_counter() - start)
    return times


def busy_seconds() -> float:
    """CPU time used on the whole machine."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
