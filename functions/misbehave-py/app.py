"""Does, on request, what a function must not do, as `../misbehave` does: the path says what. For tests of what becomes of it."""

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
            # Neither a response nor anything that makes one.
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
    """Take memory, and use it, until there is none."""
    kept = []
    while True:
        kept.append(b"\x01" * (1 << 20))


def fail() -> None:
    raise RuntimeError("on purpose")
