"""Notes what a function's modules ask for while they are imported, which is when the function is built. :mod:`weir.build` warns of it."""

from __future__ import annotations

import json
import os
import sys
from types import FrameType

#: Begins what an import ends with where there is something to warn of, and ends it.
FROZEN, END = "weir: frozen ", " :weir"

#: The interpreter's own functions behind all that is random or the time.
_CALLS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime", "gmtime"},
    "posix": {"urandom", "getrandom"},
    None: {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "Random.random",
        "Random.getrandbits",
    },
}

_asked: list[tuple[str, int]] = []


def begin() -> None:
    """Watch the calls that follow."""
    sys.setprofile(_note)


def end(app_file: str) -> None:
    """Watch no more. Raises where something in the folder of ``app_file``, and nothing that it imports, asked for what stays."""
    sys.setprofile(None)
    folder = os.path.dirname(app_file)
    places = [(os.path.relpath(file, folder), line) for file, line in _asked if file.startswith(folder + "/")]
    if places:
        raise RuntimeError(FROZEN + json.dumps(list(dict.fromkeys(places))) + END)


def _note(frame: FrameType, event: str, function: object) -> None:
    if event != "c_call":
        return
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if name in _CALLS.get(module, ()):
        asked = caller(_places(frame))
        if asked is not None:
            _asked.append(asked)


def _places(frame: FrameType | None) -> list[tuple[str, int]]:
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def caller(places: list[tuple[str, int]]) -> tuple[str, int] | None:
    """Of a stack, innermost first, the line that asked: the first that is not Python's own. None where a library is being imported, which
    gives itself a number and means no harm by it."""
    for file, line in places:
        if file.startswith("<frozen importlib"):
            return None
        if not file.startswith(("/python/", "<")) and "/site-packages/" not in file:
            return file, line
    return None
