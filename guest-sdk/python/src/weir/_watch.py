"""Notes what a function's modules ask for while they are imported, which is when the function is built. :mod:`weir.build` warns of it."""

from __future__ import annotations

import json
import os
import sys
from types import FrameType

#: Begins what an import ends with where there is something to warn of, and ends it.
FROZEN, END = "weir: frozen ", " :weir"

#: The interpreter's own functions behind all that is the time, or random without a seed.
_CALLS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns"},
    "posix": {"urandom", "getrandom"},
    None: {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"},
}
#: What draws from a generator, which is as good as its seed.
_DRAWS = {"Random.random", "Random.getrandbits"}

_asked: list[tuple[str, int]] = []
_seeded: list[object] = []
_folder = ""


def begin(app_file: str) -> None:
    """Watch the calls that follow, of what is in the folder of ``app_file``."""
    global _folder
    _folder = os.path.dirname(app_file) + "/"
    sys.setprofile(_note)


def end() -> None:
    """Watch no more. Raises where something in the folder asked for what stays."""
    sys.setprofile(None)
    _seeded.clear()
    if _asked:
        places = dict.fromkeys((file.removeprefix(_folder), line) for file, line in _asked)
        raise RuntimeError(FROZEN + json.dumps(list(places)) + END)


def _note(frame: FrameType, event: str, function: object) -> None:
    if event != "c_call":
        return
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    generator = getattr(function, "__self__", None)
    if name == "Random.seed":
        # Of the generator's own method: super().seed(a).
        if frame.f_locals.get("a") is not None:
            _seeded.append(generator)
            return
    elif name in _DRAWS:
        # One without a seed was noted when it was made.
        if generator is not getattr(sys.modules.get("random"), "_inst", None) or any(generator is one for one in _seeded):
            return
    elif name not in _CALLS.get(module, ()):
        return
    asked = caller(_places(frame), _folder)
    if asked is not None:
        _asked.append(asked)


def _places(frame: FrameType | None) -> list[tuple[str, int]]:
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def caller(places: list[tuple[str, int]], folder: str) -> tuple[str, int] | None:
    """Of a stack, innermost first, the line that asked: the first in ``folder``. None where a library is being imported, which gives itself a
    number, or logs, and means no harm by it."""
    for file, line in places:
        if file.startswith(folder):
            return file, line
        if file.startswith("<frozen importlib") or "/logging/" in file:
            return None
    return None
