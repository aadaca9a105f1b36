"""``wasi:http`` 0.2, with as few calls to the node as it takes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from componentize_py_types import Err, Ok
from wit_world.imports import request as current
from wit_world.imports import streams, tensors, types

from weir.errors import InvalidArgument, StatusError, from_node
from weir.tensors import Tensor

if TYPE_CHECKING:
    from weir.http import Response

CHUNK_BYTES = 1 << 20
# What `blocking-write-and-flush` takes at once.
BLOCKING_WRITE_BYTES = 4096
# How the contract spells a dimension that follows from the body's length.
OPEN = 0xFFFFFFFF


def read(raw: types.IncomingRequest) -> tuple[str, str, list[tuple[str, str]], Callable[[], bytes]]:
    """What :class:`weir.http.Request` is made of. The body is read when it is asked for."""
    with raw.headers() as fields:
        headers = [(name, value.decode("utf-8", "replace")) for name, value in fields.entries()]
    return _method(raw.method()), raw.path_with_query() or "/", headers, lambda: _body(raw)


def send(response: Response, out: types.ResponseOutparam) -> None:
    """Answer with ``response``. Where the node refuses it, the log is told why; where the client is gone, nobody is."""
    try:
        _send(response, out)
    except Err as refusal:
        print(f"the answer was not sent whole: {refusal.value}", file=sys.stderr)


def refuse(error: Exception, out: types.ResponseOutparam) -> None:
    """End the call with an error of the function's, and tell the log where it was made."""
    traceback.print_exception(error)
    types.ResponseOutparam.set(out, Err(types.ErrorCode_InternalError(str(error))))


def take_body(element_type: tensors.ElementType, shape: list[int]) -> tensors.Tensor:
    """Take the body of the request being handled as a tensor."""
    if any(not -1 <= size < OPEN for size in shape):
        raise InvalidArgument(f"a dimension of {shape} is below -1, or 2^32 or more")
    with from_node():
        return current.take_body_as_tensor(element_type, [OPEN if size == -1 else size for size in shape])


def _method(method: types.Method) -> str:
    if isinstance(method, types.Method_Other):
        return method.value
    return type(method).__name__.removeprefix("Method_").upper()


def _body(raw: types.IncomingRequest) -> bytes:
    try:
        body = raw.consume()
    except Err:
        raise InvalidArgument("the body was read before") from None
    chunks = []
    with body.stream() as stream:
        while True:
            try:
                chunks.append(stream.blocking_read(CHUNK_BYTES))
            except Err as end:
                if isinstance(end.value, streams.StreamError_Closed):
                    break
                raise StatusError(400, f"the body ended early: {end.value.value.to_debug_string()}") from None
    types.IncomingBody.finish(body).__exit__(None, None, None)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _send(response: Response, out: types.ResponseOutparam) -> None:
    body = response.body
    headers = [(name, str(value).encode()) for name, value in response.headers]
    if isinstance(body, Tensor):
        with from_node():
            current.reply_with_tensor(body._raw)
    else:
        headers.append(("content-length", str(len(body)).encode()))
    try:
        head = types.OutgoingResponse(types.Fields.from_list(headers))
        head.set_status_code(response.status)
    except Err as refusal:
        why = f"a status or header is not allowed: {response.status}, {response.headers}, {refusal.value}"
        types.ResponseOutparam.set(out, Err(types.ErrorCode_InternalError(why)))
        raise Err(why) from None
    stream_of = head.body()
    types.ResponseOutparam.set(out, Ok(head))
    if isinstance(body, bytes) and body:
        with stream_of.write() as stream:
            _write(stream, body)
    types.OutgoingBody.finish(stream_of, None)


def _write(stream: streams.OutputStream, body: bytes) -> None:
    """One call where the body is small; else as much at a time as the node takes."""
    if len(body) <= BLOCKING_WRITE_BYTES:
        stream.blocking_write_and_flush(body)
        return
    rest = memoryview(body)
    while rest:
        room = stream.check_write()
        if room == 0:
            with stream.subscribe() as ready:
                ready.block()
            continue
        stream.write(bytes(rest[:room]))
        rest = rest[room:]
    stream.blocking_flush()
