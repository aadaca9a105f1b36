"""Server-sent events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of a stream of server-sent events."""

    event: str
    data: str
    id: str


class EventParser:
    """Makes events of the lines of a stream."""

    def __init__(self) -> None:
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def line(self, line: str) -> ServerSentEvent | None:
        """Takes a line without its end. Returns the event that the line completes."""
        if not line:
            return self._complete()
        # A line that starts with a colon is a comment, whose name is empty.
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        return None

    def _complete(self) -> ServerSentEvent | None:
        event = None
        if self._data:
            event = ServerSentEvent(self._event or "message", "\n".join(self._data), self._id)
        self._event = ""
        self._data = []
        return event
