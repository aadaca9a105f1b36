"""Records of the bodies of a WebSocket: one byte for the kind, the length of the payload as four bytes
in little-endian order, and the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

TEXT = 1
BINARY = 2
CLOSE = 8
_HEAD = struct.Struct("<BI")
_CODE = struct.Struct("<H")
# RFC 6455, section 5.5.
_REASON_BYTES_MAX = 123


class Close(NamedTuple):
    """The reason why a WebSocket was closed."""

    #: Close code (RFC 6455, section 7.4): 1000 for a normal end, 1001 if the node stops, 1005 if the
    #: client sent no code, and 1006 if the connection was lost.
    code: int
    #: Reason, for people.
    reason: str = ""


def encode(message: str | bytes | bytearray | memoryview) -> bytes:
    """The record of a message."""
    if isinstance(message, str):
        return _record(TEXT, message.encode())
    if isinstance(message, (bytes, bytearray, memoryview)):
        return _record(BINARY, bytes(message))
    raise TypeError(f"a message is text or bytes, and not of {type(message).__name__}")


def encode_close(close: Close) -> bytes:
    """The record of a close."""
    reason = close.reason.encode()
    if len(reason) > _REASON_BYTES_MAX:
        raise ValueError(f"the reason of a close has at most {_REASON_BYTES_MAX} bytes, and not {len(reason)}")
    return _record(CLOSE, _CODE.pack(close.code) + reason)


def _record(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class Reader:
    """Takes whole records from a body that arrives in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, piece: bytes) -> None:
        self._bytes += piece

    @property
    def has_next(self) -> bool:
        """Whether a whole record is there."""
        return len(self._bytes) >= _HEAD.size and len(self._bytes) >= _HEAD.size + self._head()[1]

    def next(self) -> str | bytes | Close | None:
        """The next message or close; ``None`` until all of it has arrived."""
        if not self.has_next:
            return None
        kind, length = self._head()
        end = _HEAD.size + length
        payload = bytes(self._bytes[_HEAD.size : end])
        del self._bytes[:end]
        if kind == TEXT:
            return payload.decode()
        if kind == BINARY:
            return payload
        if kind == CLOSE:
            return Close(_CODE.unpack_from(payload)[0], payload[_CODE.size :].decode())
        raise ValueError(f"the body has a record of the unknown kind {kind}")

    def _head(self) -> tuple[int, int]:
        return _HEAD.unpack_from(self._bytes)


def decode(body: bytes) -> Iterator[str | bytes | Close]:
    """All records of a whole body."""
    reader = Reader()
    reader.push(body)
    while (record := reader.next()) is not None:
        yield record
