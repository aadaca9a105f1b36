#!/usr/bin/env python3
"""PyTorch benchmark for comparison with `weir doctor --gpu --stage networks`: the same shapes on the
same GPU.

    python bench/python/pytorch_gpu.py --beside gpu.json pytorch.json

Networks: ResNet-50 and a BERT with MiniLM's sizes, with random weights, because times and memory do
not depend on the values. Each network runs in these ways:
  eager       launch by launch
  compiled    with torch.compile(mode="reduce-overhead"), which captures CUDA graphs
  graph       as a CUDA graph of the eager launches
  processes   in one process per function, each with its own context and weights
  streams     in one process, with a stream per function and one copy of the weights
Times of eager, compiled and graph are medians by the device's clock, over runs that are queued
without waiting. Times of processes and streams are the wall time of all runs, divided by their
number. Each row has the clocks and power of the device.

Each row is written to the file after its measurement. Existing rows are not measured again. Every
combination of network, precision and batch size runs in a child process: a row that fails or takes
longer than --row-s is recorded as failed, and the next row runs in a new process. With --beside FILE,
a file of `weir doctor --gpu --batch 1,32 gpu.json`, each row of eager, compiled and graph is followed
by the ratio of Weir's time to its time. The goal is a ratio of at most 1.25 to torch.compile.

Needs torch with CUDA, and no network. Exits with 1 if a row failed or was skipped for lack of time,
and with 2 if a requirement is missing or an argument is invalid.
"""

import argparse
import ctypes
import gc
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

NETWORKS = ("resnet50", "minilm")
WAYS = ("eager", "compiled", "graph", "processes", "streams")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
# The doctor's size for dynamic dimensions of a model.
LENGTH = 16
# Minimum number and time of warm-up runs: kernels are selected and compiled, and the device reaches its clocks.
WARM_UP_RUNS = 5
WARM_UP_S = 0.3
FAILED, MISSING = 1, 2
# Maximum ratio of Weir's time to torch.compile's.
RATIO_MAX = 1.25
# Maximum length of a failure's text.
FAILURE_CHARS_MAX = 300
# Time limit for importing torch and opening the device.
START_S = 120
# Suffix of the doctor's checks that `--beside` compares with.
CAPTURED = ": run again, as a graph"


def fail(why):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(MISSING)


def arguments():
    def several(known):
        def parse(text):
            names = text.split(",")
            unknown = [name for name in names if name not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
            return names

        return parse

    def count(text):
        try:
            number = int(text)
        except ValueError:
            number = 0
        if not 1 <= number <= 10_000:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
        return number

    def counts(text):
        return [count(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=several(NETWORKS), default=list(NETWORKS), metavar="NAMES")
    parser.add_argument("--ways", type=several(WAYS), default=list(WAYS), metavar="NAMES")
    parser.add_argument("--precisions", type=several(PRECISIONS), default=["tf32"], metavar="NAMES")
    parser.add_argument("--batches", type=counts, default=[1, 32], metavar="SIZES", help="as 1,32")
    parser.add_argument("--repeats", type=count, default=50, metavar="N", help="runs that are timed")
    parser.add_argument("--functions", type=count, default=4, metavar="N", help="processes, and streams, at once")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="which GPU")
    parser.add_argument("--row-s", type=count, default=180, metavar="SECONDS", help="how long one row may take")
    parser.add_argument("--limit-s", type=count, default=10_000, metavar="SECONDS", help="how long all of it may take")
    parser.add_argument("--beside", metavar="FILE", help="the doctor's file of the same GPU, to compare with")
    parser.add_argument("--json", action="store_true", help="print the file's contents instead of a table")
    parser.add_argument("out", nargs="?", metavar="OUT", help="the file that rows are written to")
    # Options of child processes.
    parser.add_argument("--about", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=3, metavar=("NETWORK", "PRECISION", "BATCH"), help=argparse.SUPPRESS)
    parser.add_argument("--as-function", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.device < 0:
        parser.error("--device is at least 0")
    return parsed


# The networks.


def resnet50(torch):
    """Equal to torchvision's model, written out to avoid the dependency."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inside, width, stride):
            super().__init__()
            out = 4 * width
            self.body = nn.Sequential(
                nn.Conv2d(inside, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, out, 1, bias=False),
                nn.BatchNorm2d(out),
            )
            self.beside = nn.Identity()
            if stride != 1 or inside != out:
                self.beside = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            return torch.relu(self.body(x) + self.beside(x))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Block(inside, width, stride if block == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def minilm(torch):
    """Like all-MiniLM-L6-v2 in `functions/embed-text/model`: 6 layers, width 384, 12 heads, 1536 hidden; masked mean, normalised."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads, inside, layers, words, places = 384, 12, 1536, 6, 30_522, 512

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x, bias):
            batch, length, _ = x.shape
            qkv = self.qkv(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=bias)
            x = self.first(x + self.out(seen.transpose(1, 2).reshape(batch, length, width)))
            return self.second(x + self.down(functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
            self.norm, self.layers = nn.LayerNorm(width), nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, ids, mask):
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.norm(self.words(ids) + self.places(places))
            mask = mask.to(x.dtype)
            bias = (1 - mask)[:, None, None, :] * -10_000.0
            for layer in self.layers:
                x = layer(x, bias)
            mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            return functional.normalize(mean)

    return Bert()


# The child process measures one network in one precision with one batch.


def import_torch(device):
    try:
        import torch
    except ImportError as error:
        fail(f"torch cannot be imported ({error}): pip install torch (https://pytorch.org/get-started/locally)")
    if not torch.cuda.is_available():
        fail("torch finds no CUDA device: install a driver, and torch for CUDA and not for the processor alone")
    if device >= torch.cuda.device_count():
        fail(f"there is no GPU {device}: torch shows {torch.cuda.device_count()}, from 0")
    torch.cuda.set_device(device)
    return torch


class Case:
    """Network on the device with the inputs of one batch."""

    def __init__(self, torch, network, precision, batch):
        # tf32 rounds the factors of fp32 products to 10 bits of fraction; fp32 keeps all bits.
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
        self.torch = torch
        torch.manual_seed(0)
        self.model = {"resnet50": resnet50, "minilm": minilm}[network](torch).eval().requires_grad_(False).cuda().to(dtype)
        if network == "resnet50":
            self.inputs = [torch.rand(batch, 3, 224, 224, device="cuda", dtype=dtype)]
        else:
            ids = torch.arange(batch * LENGTH, device="cuda").view(batch, LENGTH) % 2
            self.inputs = [ids, torch.ones_like(ids)]
        weights = (tensor.numel() * tensor.element_size() for tensor in self.model.state_dict().values())
        self.weight_bytes = sum(weights)

    def eager(self):
        return lambda: self.model(*self.inputs)

    def compiled(self):
        model = self.torch.compile(self.model, mode="reduce-overhead")
        return lambda: model(*self.inputs)

    def graph(self):
        torch = self.torch
        # PyTorch requires a warm-up on a side stream before the capture.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP_RUNS):
                self.model(*self.inputs)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = self.model(*self.inputs)
        return graph.replay


class Monitor:
    """Reads the clocks and power of a device with NVML, if it is installed, in the doctor's format."""

    SM_CLOCK, MEMORY_CLOCK = 1, 2

    def __init__(self, torch, device):
        self.library, self.handle = None, ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            of = torch.cuda.get_device_properties(device)
            address = f"{of.pci_domain_id:08x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0".encode()
            opened = [library.nvmlInit_v2(), library.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(self.handle))]
        except (OSError, AttributeError):
            return
        self.library = library if opened == [0, 0] else None

    def read(self):
        milliwatts = self.ask("nvmlDeviceGetPowerUsage")
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", self.SM_CLOCK),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", self.MEMORY_CLOCK),
            "power_w": None if milliwatts is None else milliwatts / 1e3,
            "pcie_generation": self.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self.ask("nvmlDeviceGetCurrPcieLinkWidth"),
        }

    def ask(self, function, *which):
        value = ctypes.c_uint()
        try:
            answer = getattr(self.library, function)(self.handle, *which, ctypes.byref(value))
        except AttributeError:
            return None
        return value.value if answer == 0 else None


def warm_up(torch, run):
    began, runs = time.perf_counter(), 0
    while runs < WARM_UP_RUNS or time.perf_counter() - began < WARM_UP_S:
        run()
        torch.cuda.synchronize()
        runs += 1


def device_times_ns(torch, run, repeats, monitor):
    """Measures runs by the device's clock, and reads the monitor meanwhile. The host waits once, after queuing all runs."""
    warm_up(torch, run)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    clocks = monitor.read()
    torch.cuda.synchronize()
    return [int(begin.elapsed_time(end) * 1e6) for begin, end in pairs], clocks


def used_bytes(torch):
    """Used memory of the whole device: all processes, including their contexts."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def row(what, time_ns, detail, passed=True, clocks=None):
    """A row with the fields of the doctor's checks."""
    return {
        "stage": "networks",
        "case": None,
        "what": what,
        "tier": None,
        "passed": passed,
        "error": None,
        "tolerance": None,
        "worst": None,
        "time_ns": time_ns,
        "clocks": clocks,
        "bytes_per_s": None,
        "flops_per_s": None,
        "memory_bytes": None,
        "share_of_floor": None,
        "goal": None,
        "detail": detail,
    }


def name(case, way, functions):
    network, precision, batch = case
    several = {"processes": f"{functions} processes", "streams": f"{functions} streams"}
    return f"{network}, {precision}, batch {batch}: PyTorch, {several.get(way, way)}"


def mib(count):
    return f"{count / (1 << 20):.0f} MiB"


def alone(torch, args, way, monitor):
    before = used_bytes(torch)
    case = Case(torch, *args.case)
    times, clocks = device_times_ns(torch, getattr(case, way)(), args.repeats, monitor)
    held, peak = used_bytes(torch) - before, torch.cuda.max_memory_allocated()
    detail = f"weights {mib(case.weight_bytes)}, {mib(peak)} allocated at most, {mib(held)} more of the device"
    return int(statistics.median(times)), detail, clocks


def streams(torch, args, _way, monitor):
    before = used_bytes(torch)
    case = Case(torch, *args.case)
    all_streams = [torch.cuda.Stream() for _ in range(args.functions)]

    def once():
        for stream in all_streams:
            with torch.cuda.stream(stream):
                case.model(*case.inputs)

    warm_up(torch, once)
    began = time.perf_counter_ns()
    for _ in range(args.repeats):
        once()
    clocks = monitor.read()
    torch.cuda.synchronize()
    wall_ns = time.perf_counter_ns() - began
    held = used_bytes(torch) - before
    detail = f"a run of {args.functions} at once; weights {mib(case.weight_bytes)}, {mib(held)} more of the device"
    return wall_ns // (args.functions * args.repeats), detail, clocks


def as_function(torch, args):
    """One of several processes: reports that it is ready, waits for a line, runs, reports the end, and keeps its memory until the next line."""
    case = Case(torch, *args.case)
    run = case.eager()
    warm_up(torch, run)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(args.repeats):
        run()
    torch.cuda.synchronize()
    print(case.weight_bytes, flush=True)
    sys.stdin.readline()


def processes(torch, args, _way, monitor):
    before = used_bytes(torch)
    command = child(args, ["--as-function", "--case", *map(str, args.case)])
    functions = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(args.functions)
    ]

    def all_go_on():
        for function in functions:
            function.stdin.write("\n")
            function.stdin.flush()

    if [function.stdout.readline().strip() for function in functions] != ["ready"] * args.functions:
        raise RuntimeError("a process did not start: see above")
    began = time.perf_counter_ns()
    all_go_on()
    weights = [function.stdout.readline().strip() for function in functions]
    wall_ns = time.perf_counter_ns() - began
    if not all(weights):
        raise RuntimeError("a process ended early: see above")
    clocks = monitor.read()
    held = used_bytes(torch) - before
    all_go_on()
    for function in functions:
        function.communicate()
    detail = f"a run of {args.functions} processes at once; weights {mib(int(weights[0]))} each, {mib(held)} more of the device"
    return wall_ns // (args.functions * args.repeats), detail, clocks


def run_case(torch, args):
    """Measures each way, and prints its row."""
    monitor = Monitor(torch, args.device)
    for way in args.ways:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        what = name(args.case, way, args.functions)
        measure = {"processes": processes, "streams": streams}.get(way, alone)
        try:
            with torch.inference_mode():
                time_ns, detail, clocks = measure(torch, args, way, monitor)
        except Exception as error:
            # After a device fault this process cannot use the device.
            why = f"{type(error).__name__}: {str(error).strip()[:FAILURE_CHARS_MAX]}"
            print(json.dumps(row(what, None, why, passed=False)), flush=True)
            raise
        print(json.dumps(row(what, time_ns, detail, clocks=clocks)), flush=True)


def about(torch, device):
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(device)}), flush=True)


# The parent process starts the children. It does not import torch, so that a device fault cannot end it.


def child(args, more):
    command = [sys.executable, os.path.abspath(__file__), "--device", str(args.device), "--repeats", str(args.repeats)]
    return [*command, "--functions", str(args.functions), *more]


class Child:
    """Child process in its own group, with its output as lines of JSON."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def next(self, seconds):
        """Returns the next object of the output, or None at its end. Raises queue.Empty after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(end - time.monotonic(), 0))
            if line is None:
                return None
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def ask_about(args):
    """Identity of the rows. Rows of another device, torch version or number of repeats need another file."""
    with Child(child(args, ["--about"])) as started:
        try:
            found = started.next(START_S)
        except queue.Empty:
            fail(f"torch has not opened the device within {START_S} s")
        if found is None:
            sys.exit(started.process.wait() or MISSING)
    return {**found, "repeats": args.repeats}


def measure_case(args, case, ways, end):
    """Yields a row for each way. A crash or hang of the child process is a failed row."""
    ways = list(ways)
    while ways:
        command = child(args, ["--case", *map(str, case), "--ways", ",".join(ways)])
        with Child(command) as started:
            # Only the first row includes the start of torch.
            extra_s = START_S
            while ways:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return
                seconds, extra_s = min(args.row_s + extra_s, left_s), 0
                try:
                    found = started.next(seconds)
                    why = f"its process ended with {started.process.wait()}: see above" if found is None else None
                except queue.Empty:
                    found, why = None, f"it took longer than {seconds:.0f} s"
                way = ways.pop(0)
                one = found or row(name(case, way, args.functions), None, why, passed=False)
                yield one
                if not one["passed"]:
                    break


def read_rows(path, of):
    """Reads the rows of earlier runs."""
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        rows = [one for one in kept["rows"] if one["passed"] and ": PyTorch, " in one["what"]]
        if kept["of"] == of:
            return rows
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is no file of this program: {error!r}; remove it, or give another")
    fail(f"{path} is of {kept['of']}, and this is {of}; remove it, or give another")


def write_rows(path, of, rows):
    """Writes the rows atomically."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump({"of": of, "rows": rows}, file, indent=2)
        file.write("\n")
    os.replace(partial, path)


def runs_of_weir(path):
    """Times of the captured runs in the doctor's file, in nanoseconds by network, precision and batch."""
    try:
        with open(path, encoding="utf-8") as file:
            checks = json.load(file)["checks"]
        found = {check["what"]: check.get("time_ns") for check in checks if check.get("passed")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"nothing is compared: {path} is no file of weir doctor --gpu: {error!r}", file=sys.stderr)
        return {}
    return {what[: -len(CAPTURED)]: time_ns for what, time_ns in found.items() if what.endswith(CAPTURED) and time_ns}


def compared(one, weir):
    """A row with the ratio of Weir's time to this row's. Empty if either time is missing."""
    what, _, way = one["what"].partition(": PyTorch, ")
    time_ns = weir.get(what)
    if not time_ns or not one["time_ns"] or way not in ("eager", "compiled", "graph"):
        return []
    ratio = time_ns / one["time_ns"]
    detail, goal = f"{ratio:.2f} of PyTorch's", None
    if way == "compiled":
        goal = {"found": ratio, "at_most": RATIO_MAX, "unit": "of torch.compile", "is_met": ratio <= RATIO_MAX}
        detail += f", at most {RATIO_MAX}: {'met' if goal['is_met'] else 'missed'}"
    return [{**row(f"{what}: Weir, beside PyTorch, {way}", time_ns, detail), "goal": goal}]


def shown(one):
    time_us = f"{one['time_ns'] / 1e3:.1f} us" if one["time_ns"] else "FAILED"
    return f"{one['what']:<60} {time_us:>15}  {one['detail']}"


def measure(args):
    end = time.monotonic() + args.limit_s
    weir = runs_of_weir(args.beside) if args.beside else {}
    of = ask_about(args)
    rows = read_rows(args.out, of) if args.out else []
    cases = [(network, precision, batch) for network in args.networks for precision in args.precisions for batch in args.batches]
    left_out = len(cases) * len(args.ways)
    for case in cases:
        had = [way for way in args.ways if any(one["what"] == name(case, way, args.functions) for one in rows)]
        left_out -= len(had)
        for one in measure_case(args, case, [way for way in args.ways if way not in had], end):
            left_out -= 1
            rows.append(one)
            print("\n".join(map(shown, [one, *compared(one, weir)])), file=sys.stderr)
            if args.out:
                write_rows(args.out, of, [*rows, *(more for one in rows for more in compared(one, weir))])
    rows += [more for one in rows for more in compared(one, weir)]
    if args.out:
        write_rows(args.out, of, rows)
    print(json.dumps({"of": of, "rows": rows}, indent=2) if args.json else "\n".join(map(shown, rows)))
    if left_out:
        print(f"{left_out} rows were left out for want of time", file=sys.stderr)
    return FAILED if left_out or not all(one["passed"] for one in rows) else 0


def main():
    args = arguments()
    # End the children when this process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    if not (args.about or args.case):
        sys.exit(measure(args))
    torch = import_torch(args.device)
    if args.case:
        network, precision, batch = args.case
        args.case = (network, precision, int(batch))
    if args.about:
        about(torch, args.device)
    elif args.as_function:
        with torch.inference_mode():
            as_function(torch, args)
    else:
        run_case(torch, args)


if __name__ == "__main__":
    main()
