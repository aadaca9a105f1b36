"""Stub of the torch functions that pytorch_gpu.py calls, without a device: every run takes 1.5 ms by the
device's clock.

With TORCH_STUB=hang torch.compile never returns; with TORCH_STUB=fault the capture of a CUDA graph
fails. Waiting for the device during a timed interval is an error.
"""

import contextlib
import os
import time
from types import SimpleNamespace

__version__ = "0-stub"
float16, bfloat16, float32 = "float16", "bfloat16", "float32"
RUN_MS = 1.5
BEHAVIOUR = os.environ.get("TORCH_STUB")
timing = False


class Tensor:
    shape = (1, 16)

    def numel(self):
        return 1 << 20

    def element_size(self):
        return 4

    def view(self, *_):
        return self

    __mod__ = view


class Module:
    def __init__(self, *_, **__):
        pass

    def same(self, *_):
        return self

    eval = requires_grad_ = cuda = to = same

    def state_dict(self):
        return {"weight": Tensor()}

    def __call__(self, *_):
        return Tensor()


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        global timing
        timing = not timing

    def elapsed_time(self, _end):
        return RUN_MS


class Stream:
    def wait_stream(self, _):
        pass


class CUDAGraph:
    def __init__(self):
        if BEHAVIOUR == "fault":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def replay(self):
        pass


def synchronize():
    if timing:
        raise RuntimeError("the host waits inside a timed interval")


def compile(model, mode):
    assert mode == "reduce-overhead"
    while BEHAVIOUR == "hang":
        time.sleep(1)
    return model


def tensor(*_, **__):
    return Tensor()


arange = ones_like = rand = tensor


def nothing(*_, **__):
    return contextlib.nullcontext()


manual_seed = inference_mode = nothing
LAYERS = "BatchNorm2d Conv2d Embedding Flatten Identity LayerNorm Linear MaxPool2d ModuleList ReLU Sequential AdaptiveAvgPool2d"
nn = SimpleNamespace(Module=Module, functional=None, **{name: Module for name in LAYERS.split()})
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()), cudnn=SimpleNamespace())
cuda = SimpleNamespace(
    CUDAGraph=CUDAGraph,
    Event=Event,
    Stream=Stream,
    current_stream=Stream,
    device_count=lambda: 1,
    empty_cache=nothing,
    get_device_name=lambda _: "stub",
    get_device_properties=lambda _: SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0),
    graph=nothing,
    is_available=lambda: True,
    max_memory_allocated=lambda: 0,
    mem_get_info=lambda: (60 << 30, 80 << 30),
    reset_peak_memory_stats=nothing,
    set_device=nothing,
    stream=nothing,
    synchronize=synchronize,
)
