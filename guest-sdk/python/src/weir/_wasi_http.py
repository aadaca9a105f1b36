"""``wasi:http`` 0.2, with as few host calls as possible."""

from __future__ import annotations

import sys
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

from componentize_py_types import Err, Ok
from wit_world.imports import request as current
from wit_world.imports import streams, tensors, types

from weir._wasi_body import Body, serve
from weir.errors import InvalidArgument, from_node
from weir.streams import Chunks
from weir.tensors import Tensor

if TYPE_CHECKING:
    from weir.http import Response

# Largest write that `blocking-write-and-flush` accepts.
BLOCKING_WRITE_BYTES = 4096
# The node's encoding of a dimension that is inferred from the length of the body.
OPEN = 0xFFFFFFFF


def read(raw: types.IncomingRequest) -> tuple[str, str, list[tuple[str, str]], Body]:
    """The arguments of :class:`weir.http.Request`. The body is read on demand."""
    with raw.headers() as fields:
        headers = [(name, value.decode("utf-8", "replace")) for name, value in fields.entries()]
    return _method(raw.method()), raw.path_with_query() or "/", headers, Body(raw)


def send(response: Response, out: types.ResponseOutparam) -> None:
    """Sends ``response``. If the node rejects it, logs the reason; ignores a client that has
    disconnected.
    """
    try:
        _send(response, out)
    except Err as refusal:
        print(f"the answer was not sent whole: {refusal.value}", file=sys.stderr)


def refuse(error: Exception, out: types.ResponseOutparam) -> None:
    """Ends the call with an error of the function, and logs the place where it was raised."""
    traceback.print_exception(error)
    types.ResponseOutparam.set(out, Err(types.ErrorCode_InternalError(str(error))))


def take_body(element_type: tensors.ElementType, shape: list[int]) -> tensors.Tensor:
    """Takes the body of the current request as a tensor."""
    if any(not -1 <= size < OPEN for size in shape):
        raise InvalidArgument(f"a dimension of {shape} is below -1, or 2^32 or more")
    with from_node():
        return current.take_body_as_tensor(element_type, [OPEN if size == -1 else size for size in shape])


def _method(method: types.Method) -> str:
    if isinstance(method, types.Method_Other):
        return method.value
    return type(method).__name__.removeprefix("Method_").upper()


def _send(response: Response, out: types.ResponseOutparam) -> None:
    body = response.body
    headers = [(name, str(value).encode()) for name, value in response.headers]
    if isinstance(body, Tensor):
        with from_node():
            current.reply_with_tensor(body._raw)
    elif isinstance(body, bytes):
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
    elif isinstance(body, Chunks):
        with stream_of.write() as stream, closing(body):
            for chunk in body:
                _write(stream, chunk)
    elif not isinstance(body, (bytes, Tensor)):
        with stream_of.write() as stream:
            serve(body, stream, _write)
    types.OutgoingBody.finish(stream_of, None)


def _write(stream: streams.OutputStream, body: bytes) -> None:
    """Writes a small body with a single host call, and a larger one in pieces as the node accepts
    them.
    """
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
