"""Lines of a body that arrives in parts."""

from __future__ import annotations

from ._errors import ProtocolError

LINE_BYTES_MAX = 16 << 20
"""Longest line of a response that is read by lines."""


class LineSplitter:
    """Splits bytes at line feeds only, because JSON may contain the other line ends of Unicode."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, part: bytes) -> list[str]:
        """Takes the next part of the body. Returns the lines that it completes."""
        *complete, rest = part.split(b"\n")
        if not complete:
            self._rest += rest
            if len(self._rest) > LINE_BYTES_MAX:
                raise ProtocolError(f"a line of the response is longer than {LINE_BYTES_MAX} bytes")
            return []
        complete[0] = bytes(self._rest) + complete[0]
        self._rest = bytearray(rest)
        return [_text(line) for line in complete]

    def finish(self) -> list[str]:
        """The last line, if the body did not end with a line feed."""
        return [_text(bytes(self._rest))] if self._rest else []


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
