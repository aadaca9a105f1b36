"""Misbehaves on request, like `../misbehave`: the path selects the fault. For tests of the
consequences.
"""

import sys

from weir.http import Request, Response, http_function


@http_function
def handle(request: Request) -> object:
    match request.path:
        case "/behave":
            return "ok\n"
        case "/spin":
            spin()
        case "/hoard":
            hoard()
        case "/trap":
            fail()
        case "/wrong":
            # Neither a response nor a value that converts to one.
            return handle
        case "/status":
            return Response("", 7)
        case "/exit":
            sys.exit(3)
    return Response(f"no misbehaviour called {request.path}\n", 404)


def spin() -> None:
    while True:
        pass


def hoard() -> None:
    """Allocates and writes memory until none is left."""
    kept = []
    while True:
        kept.append(b"\x01" * (1 << 20))


def fail() -> None:
    raise RuntimeError("on purpose")
