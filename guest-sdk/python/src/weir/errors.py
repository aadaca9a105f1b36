"""Errors and their responses.

Each case of the WIT type ``error`` is an exception, which is also a subclass of the corresponding
built-in exception. Raised from a handler, it becomes the response: HTTP status :attr:`Error.status`
with the text, or the error of the tensor function. Any other exception ends the call, with a
traceback in the function's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weir._wit import Err, tensors


class Error(Exception):
    """Why something could not be done. Raise one of the subclasses."""

    #: HTTP status of the error response.
    status: int = 500

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else (type(self).__doc__ or "").rstrip(".")


class InvalidArgument(Error, ValueError):
    """What was asked for is wrong in itself: a shape that does not fit the data, an unknown input name."""

    status = 400


class InvalidRun(InvalidArgument):
    """The arguments of a model run are invalid. The function chose them, so the client sees a
    failure of the function.
    """

    status = 500


class NotFound(Error, LookupError):
    """No model of that name, or no such version of it, is deployed."""


class NotGranted(Error, PermissionError):
    """The model exists, but the function's manifest does not grant it."""


class ResourceExhausted(Error):
    """A limit of the function or of the node is used up."""

    status = 503


class DeadlineExceeded(Error, TimeoutError):
    """The deadline of the run, or of the whole invocation, passed first."""

    status = 504


class Cancelled(Error):
    """The run was cancelled, by the function or because the client went away."""

    status = 503


class Unavailable(Error):
    """It may work later; safe to try again."""

    status = 503


class RequestFailed(Error, ConnectionError):
    """A request to another server could not be sent, or has no whole response."""

    status = 502


class InternalError(Error):
    """The model itself failed, or the node has a fault."""


class StatusError(Error):
    """An error response defined by the function: an HTTP status of 400 or higher, and a text for
    the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_BY_CASE = {
    tensors.Error_InvalidArgument: InvalidArgument,
    tensors.Error_NotFound: NotFound,
    tensors.Error_NotGranted: NotGranted,
    tensors.Error_ResourceExhausted: ResourceExhausted,
    tensors.Error_DeadlineExceeded: DeadlineExceeded,
    tensors.Error_Cancelled: Cancelled,
    tensors.Error_Unavailable: Unavailable,
    tensors.Error_Internal: InternalError,
}
_BY_KIND = {kind: case for case, kind in _BY_CASE.items()}


@contextmanager
def from_node() -> Iterator[None]:
    """Converts errors of node calls to :class:`Error`."""
    try:
        yield
    except Err as refusal:
        case = refusal.value
        kind = _BY_CASE.get(type(case), InternalError)
        text = getattr(case, "value", None)
        raise (kind(text) if text is not None else kind()) from None


@contextmanager
def from_run() -> Iterator[None]:
    """Like :func:`from_node`, for model runs."""
    try:
        with from_node():
            yield
    except InvalidArgument as error:
        raise InvalidRun(*error.args) from None


def to_node(error: Error) -> Err:
    """Converts an error for the caller of a tensor function."""
    case = _BY_KIND.get(type(error))
    if case is None:
        case = tensors.Error_InvalidArgument if 400 <= error.status < 500 else tensors.Error_Internal
    if case in (tensors.Error_DeadlineExceeded, tensors.Error_Cancelled):
        return Err(case())
    return Err(case(str(error)))
