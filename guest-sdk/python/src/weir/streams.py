"""Bodies that are sent while the function makes them, and server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from weir.coroutines import finish

__all__ = ["Chunks", "Event", "NotAllowed"]

# The line ends of server-sent events: fewer than those of `str.splitlines`.
_LINE_END = re.compile(r"\r\n|\r|\n")
_CHUNKS = (str, bytes, bytearray, memoryview)


class NotAllowed(TypeError, ValueError):
    """A value that cannot become a response. Ends the call with an error of the function, and the
    log has the place where it was created.
    """


class Chunks:
    """The chunks of a streamed body: text or bytes from an iterator, which may be asynchronous.

    The iterator advances only when the node takes the next chunk, and is closed at the end.
    """

    def __init__(self, source: Iterator[Any] | AsyncIterator[Any]) -> None:
        self._source = source
        self._chunks = map(_encoded, _steps(source))
        #: Whether the first chunk is text.
        self.is_text = False

    def start(self) -> None:
        """Advances to the first chunk, so that an error before it becomes an error response."""
        steps = _steps(self._source)
        first = next(steps, None)
        self.is_text = first is None or isinstance(first, str)
        if first is not None and not isinstance(first, _CHUNKS):
            raise NotAllowed(_no_chunk(first))
        self._chunks = map(_encoded, chain(() if first is None else (first,), steps))

    def __iter__(self) -> Iterator[bytes]:
        try:
            # Empty chunks would end the body.
            yield from filter(None, self._chunks)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the iterator: its `finally` blocks run."""
        if isinstance(self._source, AsyncIterator):
            close = getattr(self._source, "aclose", None)
            if close is not None:
                finish(close())
        elif hasattr(self._source, "close"):
            self._source.close()


@dataclass(frozen=True)
class Event:
    """A server-sent event, of :class:`weir.http.EventStream`.

    ``data`` is text of any number of lines, or a value that becomes JSON.
    """

    data: object = None
    #: Kind of event, for which clients listen; ``message`` if unset.
    event: str | None = None
    #: The client sends the last id in the header ``last-event-id`` when it connects again.
    id: str | None = None
    #: Time in milliseconds after which a client that lost its connection connects again.
    retry: int | None = None
    #: Text that clients ignore, for example to keep an idle connection open.
    comment: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("event", self.event), ("id", self.id)):
            if value is not None and (not isinstance(value, str) or _LINE_END.search(value) or "\0" in value):
                raise ValueError(f"the {name} of an event is a single line of text, and not {value!r}")
        if self.retry is not None and (not isinstance(self.retry, int) or self.retry < 0):
            raise ValueError(f"the retry of an event is a whole number of milliseconds, and not {self.retry!r}")

    def encode(self) -> bytes:
        """The event as it is sent."""
        lines = []
        if self.comment is not None:
            lines += [f": {line}" for line in _LINE_END.split(self.comment)]
        for name, value in (("event", self.event), ("id", self.id), ("retry", self.retry)):
            if value is not None:
                lines.append(f"{name}: {value}")
        if self.data is not None:
            text = self.data if isinstance(self.data, str) else _json(self.data)
            lines += [f"data: {line}" for line in _LINE_END.split(text)]
        return "".join(f"{line}\n" for line in [*lines, ""]).encode()


def encode_events(events: Iterable[object] | AsyncIterable[object]) -> Iterator[bytes]:
    """The chunks of a stream of events. Of other values than :class:`Event`, each is the data of an
    event.
    """
    source = aiter(events) if isinstance(events, AsyncIterable) else iter(events)
    try:
        for event in _steps(source):
            yield (event if isinstance(event, Event) else Event(event)).encode()
    finally:
        Chunks(source).close()


def _steps(source: Iterator[Any] | AsyncIterator[Any]) -> Iterator[Any]:
    if not isinstance(source, AsyncIterator):
        yield from source
        return
    while True:
        try:
            item = finish(anext(source))
        except StopAsyncIteration:
            return
        yield item


def _encoded(chunk: Any) -> bytes:
    if not isinstance(chunk, _CHUNKS):
        raise TypeError(_no_chunk(chunk))
    return chunk.encode() if isinstance(chunk, str) else bytes(chunk)


def _no_chunk(chunk: object) -> str:
    return f"a chunk of the body is of {type(chunk).__name__} and not text or bytes"


def _json(value: object) -> str:
    # JSON has no form for NaN and infinities.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
