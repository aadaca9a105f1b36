#!/usr/bin/env python3
"""PyTorch's side of what `weir doctor --gpu --stage networks --json` shows: the same shapes on the same GPU.

    python bench/python/pytorch_gpu.py --beside gpu.json --json > pytorch.json

ResNet-50 and a BERT of MiniLM's sizes, with made-up weights: times and memory do not depend on their values. Each is run
  eager       launch by launch
  compiled    torch.compile(mode="reduce-overhead"), which captures CUDA graphs by itself
  graph       the eager launches, captured as a CUDA graph
  processes   one process per function: so many processes, each with a context and weights of its own
  streams     one process, so many streams over one copy of the weights
With --beside, a file that `weir doctor --gpu --batch 1,32 gpu.json` has written, each way of one process has a row more: what Weir takes in parts of it, of which at most
1.25 is asked for beside torch.compile. Rows have the fields of the doctor's, so that one program reads both. Times are medians, by the device's clock where one process runs, and by the
clock of the machine for processes and streams.

It needs torch with CUDA, and no network. It ends with 2 where something is missing or an argument is wrong.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

NETWORKS = ("resnet50", "minilm")
WAYS = ("eager", "compiled", "graph", "processes", "streams")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
# As the doctor makes up a length that a model leaves open.
LENGTH = 16
# Runs before anything is timed: kernels are chosen and compiled meanwhile.
WARM_UP = 5
MISSING = 2
# What Weir may take, in parts of what torch.compile does.
RATIO_MAX = 1.25


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
    parser.add_argument("--repeats", type=count, default=50, metavar="N", help="how often what is timed is repeated")
    parser.add_argument("--functions", type=count, default=4, metavar="N", help="processes, and streams, at once")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="which GPU")
    parser.add_argument("--beside", metavar="FILE", help="what the doctor found on the same GPU, to be compared")
    parser.add_argument("--json", action="store_true", help="print an array of rows instead of a table")
    # One of several processes, started by the one that was asked.
    parser.add_argument("--as-function", nargs=3, metavar=("NETWORK", "PRECISION", "BATCH"), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.device < 0:
        parser.error("--device is at least 0")
    return parsed


def import_torch(device):
    try:
        import torch
    except ImportError:
        fail("torch is not installed: pip install torch (https://pytorch.org/get-started/locally)")
    if not torch.cuda.is_available():
        fail("torch finds no CUDA device: install a driver, and torch for CUDA and not for the processor alone")
    if device >= torch.cuda.device_count():
        fail(f"there is no GPU {device}: torch shows {torch.cuda.device_count()}, from 0")
    torch.cuda.set_device(device)
    return torch


def resnet50(torch):
    """As torchvision's, written out so that nothing else has to be installed."""
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
    """A BERT of the sizes of all-MiniLM-L6-v2: 6 layers, 384 wide, 12 heads, 1536 inside."""
    nn = torch.nn
    width, heads, inside, layers, words, places = 384, 12, 1536, 6, 30_522, 512

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, inside), nn.Linear(inside, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x):
            batch, length, _ = x.shape
            qkv = self.qkv(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
            x = self.first(x + self.out(seen.transpose(1, 2).reshape(batch, length, width)))
            return self.second(x + self.down(nn.functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
            self.norm, self.layers = nn.LayerNorm(width), nn.Sequential(*(Layer() for _ in range(layers)))

        def forward(self, ids):
            places = torch.arange(ids.shape[1], device=ids.device)
            return self.layers(self.norm(self.words(ids) + self.places(places)))

    return Bert()


class Case:
    """A network on the device, with an input of one batch."""

    def __init__(self, torch, network, precision, batch):
        # Products of fp32 have 10 bits of fraction in tf32, and all of theirs in fp32.
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
        self.torch = torch
        torch.manual_seed(0)
        self.model = {"resnet50": resnet50, "minilm": minilm}[network](torch).eval().cuda().to(dtype)
        if network == "resnet50":
            self.input = torch.rand(batch, 3, 224, 224, device="cuda", dtype=dtype)
        else:
            self.input = torch.arange(batch * LENGTH, device="cuda").view(batch, LENGTH) % 2
        weights = (tensor.numel() * tensor.element_size() for tensor in self.model.state_dict().values())
        self.weight_bytes = sum(weights)

    def eager(self):
        return lambda: self.model(self.input)

    def compiled(self):
        model = self.torch.compile(self.model, mode="reduce-overhead")
        return lambda: model(self.input)

    def graph(self):
        torch = self.torch
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self.model(self.input)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = self.model(self.input)
        return graph.replay


def device_times_ns(torch, run, repeats):
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(int(begin.elapsed_time(end) * 1e6))
    return times


def used_bytes(torch):
    """Of the whole device, whichever process has it: contexts count, too."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def row(what, times_ns, detail):
    """A row as the doctor's have it."""
    time_ns = int(statistics.median(times_ns))
    return {
        "stage": "networks",
        "what": what,
        "passed": True,
        "error": None,
        "tolerance": None,
        "time_ns": time_ns,
        "bytes_per_s": None,
        "flops_per_s": None,
        "share_of_floor": None,
        "goal": None,
        "detail": detail,
    }


def runs_of_weir(path):
    """Nanoseconds of each captured run that the doctor's file has, by network, precision and batch."""
    try:
        with open(path, encoding="utf-8") as file:
            checks = json.load(file)["checks"]
        ending = ": run again, as a graph"
        return {check["what"].removesuffix(ending): check["time_ns"] for check in checks if check["what"].endswith(ending)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{path} is no file of weir doctor --gpu: {error!r}")


def beside(one, weir):
    """What Weir takes of a row, in parts of it; none if it has not run that."""
    what, _, way = one["what"].partition(": PyTorch, ")
    time_ns = weir.get(what)
    if time_ns is None or way not in ("eager", "compiled", "graph"):
        return None
    ratio = time_ns / one["time_ns"]
    goal = {"found": ratio, "at_most": RATIO_MAX, "unit": "of torch.compile", "is_met": ratio <= RATIO_MAX}
    detail = f"{ratio:.2f} of PyTorch's"
    if way == "compiled":
        detail += f", at most {RATIO_MAX}: {'met' if goal['is_met'] else 'missed'}"
    return {**row(f"{what}: Weir, beside PyTorch, {way}", [time_ns], detail), "goal": goal if way == "compiled" else None}


def mib(count):
    return f"{count / (1 << 20):.0f} MiB"


def alone(torch, args, network, precision, batch, way):
    before = used_bytes(torch)
    case = Case(torch, network, precision, batch)
    times = device_times_ns(torch, getattr(case, way)(), args.repeats)
    held, peak = used_bytes(torch) - before, torch.cuda.max_memory_allocated()
    detail = f"weights {mib(case.weight_bytes)}, {mib(peak)} allocated at most, {mib(held)} more of the device"
    return row(f"{network}, {precision}, batch {batch}: PyTorch, {way}", times, detail)


def streams(torch, args, network, precision, batch):
    before = used_bytes(torch)
    case = Case(torch, network, precision, batch)
    all_streams = [torch.cuda.Stream() for _ in range(args.functions)]

    def once():
        for stream in all_streams:
            with torch.cuda.stream(stream):
                case.model(case.input)
        torch.cuda.synchronize()

    for _ in range(WARM_UP):
        once()
    times = []
    for _ in range(args.repeats):
        began = time.perf_counter_ns()
        once()
        times.append((time.perf_counter_ns() - began) // args.functions)
    held = used_bytes(torch) - before
    detail = f"a run of {args.functions} at once; weights {mib(case.weight_bytes)}, {mib(held)} more of the device"
    what = f"{network}, {precision}, batch {batch}: PyTorch, {args.functions} streams"
    return row(what, times, detail)


def as_function(torch, args):
    """What one of several processes does: say that it is ready, wait for the word, run, and tell its times."""
    network, precision, batch = args.as_function
    case = Case(torch, network, precision, int(batch))
    run = case.eager()
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    times = []
    for _ in range(args.repeats):
        began = time.perf_counter_ns()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - began)
    print(json.dumps({"times_ns": times, "weight_bytes": case.weight_bytes}), flush=True)
    # What it holds is read off while all hold theirs.
    sys.stdin.readline()


def processes(torch, args, network, precision, batch):
    command = [sys.executable, __file__, "--device", str(args.device), "--repeats", str(args.repeats)]
    command += ["--as-function", network, precision, str(batch)]
    before = used_bytes(torch)
    functions = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(args.functions)
    ]
    try:
        for function in functions:
            if function.stdout.readline().strip() != "ready":
                fail(f"a process for {network} did not start: see above")

        def all_go_on():
            for function in functions:
                function.stdin.write("\n")
                function.stdin.flush()

        began = time.perf_counter_ns()
        all_go_on()
        lines = [function.stdout.readline() for function in functions]
        wall_ns = time.perf_counter_ns() - began
        if not all(lines):
            fail(f"a process for {network} ended early: see above")
        told = [json.loads(line) for line in lines]
        held = used_bytes(torch) - before
        all_go_on()
    finally:
        for function in functions:
            try:
                function.communicate(timeout=60)
            except (subprocess.TimeoutExpired, ValueError, BrokenPipeError):
                function.kill()
    each_ns = wall_ns // (args.functions * args.repeats)
    waited_ns = statistics.median(time_ns for one in told for time_ns in one["times_ns"])
    weight_bytes = told[0]["weight_bytes"]
    detail = (
        f"a run of {args.functions} processes at once, each of which waits {waited_ns / 1e3:.0f} us for one of its own; "
        f"weights {mib(weight_bytes)} each, {mib(held)} more of the device"
    )
    what = f"{network}, {precision}, batch {batch}: PyTorch, {args.functions} processes"
    return row(what, [each_ns], detail)


def measure(torch, args):
    several = {"processes": processes, "streams": streams}
    for network in args.networks:
        for precision in args.precisions:
            for batch in args.batches:
                for way in args.ways:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    if way in several:
                        yield several[way](torch, args, network, precision, batch)
                    else:
                        yield alone(torch, args, network, precision, batch, way)


def main():
    args = arguments()
    weir = runs_of_weir(args.beside) if args.beside else {}
    torch = import_torch(args.device)
    with torch.inference_mode():
        if args.as_function:
            as_function(torch, args)
            return
        rows = []
        for one in measure(torch, args):
            print(f"{one['what']}: {one['time_ns'] / 1e3:.1f} us", file=sys.stderr)
            rows.append(one)
            compared = beside(one, weir)
            if compared:
                print(f"{compared['what']}: {compared['detail']}", file=sys.stderr)
                rows.append(compared)
    if args.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        for one in rows:
            print(f"{one['what']:<60} {one['time_ns'] / 1e3:>12.1f} us  {one['detail']}")


if __name__ == "__main__":
    main()
