"""Streams its response, for tests: the path selects what."""

import time
from collections.abc import AsyncIterator, Iterator

from weir import StatusError
from weir.http import Event, EventStream, Request, Response, http_function

CHUNK = "x" * 65_536


@http_function
def handle(request: Request) -> object:
    count = int(request.query.get("count", "3"))
    match request.path:
        case "/text":
            return (f"{n}\n" for n in range(count))
        case "/events":
            return EventStream(events(count, float(request.query.get("pause", "0.3"))), {"x-count": str(count)})
        case "/async":
            return EventStream(numbers(count))
        case "/flood":
            return Response(flood(count), headers={"content-type": "text/plain"})
        case "/early":
            return late(0)
        case "/late":
            return late(count)
    return Response(f"no stream called {request.path}\n", 404)


def events(count: int, pause: float) -> Iterator[Event]:
    for n in range(count):
        # Each event arrives before the next one exists.
        if n > 0:
            time.sleep(pause)
        yield Event({"n": n, "text": "one\ntwo"}, event="count", id=str(n), retry=1000)
    yield Event("one\ntwo")


async def numbers(count: int) -> AsyncIterator[int]:
    for n in range(count):
        yield n


def flood(count: int) -> Iterator[str]:
    for n in range(count):
        print(f"chunk {n}")
        yield CHUNK


def late(count: int) -> Iterator[str]:
    for n in range(count):
        yield f"{n}\n"
    raise StatusError(404, "nothing more")
