"""What can go wrong, and how it is answered.

Each case of the contract's ``error`` is an exception, which is also of the built-in kind that a Python programmer would look for. Raised
from a function and not caught, it becomes the answer: HTTP status :attr:`Error.status` with the text, or the error of the tensor function.
Any other exception ends the call with a traceback in the function's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weir._wit import Err, tensors


class Error(Exception):
    """Why something could not be done. Raise one of the subclasses."""

    #: The HTTP status that answers for it.
    status: int = 500

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else (type(self).__doc__ or "").rstrip(".")


class InvalidArgument(Error, ValueError):
    """What was asked for is wrong in itself: a shape that does not fit the data, an unknown input name."""

    status = 400


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


class InternalError(Error):
    """The model itself failed, or the node has a fault."""


class StatusError(Error):
    """The function's own answer: an HTTP status from 400 up, and a text for whoever asked."""

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
    """Raise what the node refuses as an :class:`Error`."""
    try:
        yield
    except Err as refusal:
        case = refusal.value
        kind = _BY_CASE.get(type(case), InternalError)
        text = getattr(case, "value", None)
        raise (kind(text) if text is not None else kind()) from None


def to_node(error: Error) -> Err:
    """What the caller of a tensor function gets to see."""
    case = _BY_KIND.get(type(error))
    if case is None:
        case = tensors.Error_InvalidArgument if 400 <= error.status < 500 else tensors.Error_Internal
    if case in (tensors.Error_DeadlineExceeded, tensors.Error_Cancelled):
        return Err(case())
    return Err(case(str(error)))
