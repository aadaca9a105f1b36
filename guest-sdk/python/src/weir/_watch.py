"""Records calls for the time or random numbers while the function's modules are imported, which is
at build time. :mod:`weir.build` warns about them.
"""

from __future__ import annotations

import json
import os
import sys
from types import FrameType

#: Delimiters of the warnings in the message that ends an import.
FROZEN, END = "weir: frozen ", " :weir"

#: The interpreter's functions behind all sources of time and of unseeded randomness.
_CALLS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns"},
    "posix": {"urandom", "getrandom"},
    None: {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"},
}
#: Methods that draw from a generator, which is harmless if the generator has a seed.
_DRAWS = {"Random.random", "Random.getrandbits"}

_asked: list[tuple[str, int]] = []
_seeded: list[object] = []
_folder = ""


def begin(app_file: str) -> None:
    """Starts to record calls from files in the folder of ``app_file``."""
    global _folder
    _folder = os.path.dirname(app_file) + "/"
    sys.setprofile(_note)


def end() -> None:
    """Stops recording. Raises if a file in the folder obtained a value that stays in the component.
    """
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
        # The argument of the generator's method: super().seed(a).
        if frame.f_locals.get("a") is not None:
            _seeded.append(generator)
            return
    elif name in _DRAWS:
        # A generator without a seed was recorded when it was created.
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
    """The calling line: the first line in ``folder`` of a stack, innermost first. None while a
    library is being imported, since a random number or a log record of an import is harmless.
    """
    for file, line in places:
        if file.startswith(folder):
            return file, line
        if file.startswith("<frozen importlib") or "/logging/" in file:
            return None
    return None
