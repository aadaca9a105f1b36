"""Exceptions of the clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._response import Response


class WeirError(Exception):
    """Base class of all exceptions of this package."""


class TransportError(WeirError):
    """The request has no response: the node cannot be reached, or the connection was lost."""

    is_timeout = False

    def __init__(self, message: str, *, is_sent: bool) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        """Whether the node may have received the request."""


class RequestTimeout(TransportError, TimeoutError):
    """The node did not accept the connection, or did not continue with its response, in time."""

    is_timeout = True


class ProtocolError(WeirError):
    """The response is not one that this version of the client understands."""


class FunctionError(WeirError):
    """A function's own response has an error status. `Response.raise_for_status` raises it."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"the function answered {response.status}: {response.text[:500]}")
        self.response = response

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status


class ApiError(WeirError):
    """An error response of the node.

    The reference of error codes lists the codes with their meanings and remedies.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        request_id: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{message} ({status} {code})" if code else f"{message} ({status})")
        self.status = status
        """The HTTP status."""
        self.code = code
        """The error code, such as `model-not-found`. Empty for a response of a proxy."""
        self.message = message
        """The error and its remedy, for people."""
        self.request_id = request_id
        """Id of the request, as in the node's log."""
        self.retry_after = retry_after
        """Seconds after which the request may succeed."""
        self.details = dict(details or {})
        """Other keys of the body, such as `estimated_ns` of a rejected call."""


class BadRequestError(ApiError):
    """400, 405, 408, 421 or 431: the node cannot read the request."""


class AuthenticationError(ApiError):
    """401: the token is missing or unknown."""


class PermissionDeniedError(ApiError):
    """403: the token does not permit the request."""


class NotFoundError(ApiError):
    """404: the resource does not exist. `code` names its kind."""


class ConflictError(ApiError):
    """409: the request conflicts with the current state or with a concurrent change."""


class GoneError(ApiError):
    """410: the record of the invocation has expired."""


class TooLargeError(ApiError):
    """413: the body is too large."""


class UnprocessableError(ApiError):
    """422: the upload or request is well-formed, but cannot be used."""


class TooManyRequestsError(ApiError):
    """429: a queue is full, or a quota is used up."""


class CancelledError(ApiError):
    """499: the invocation was cancelled."""


class ServerError(ApiError):
    """5xx: the call failed, or the node cannot serve the request now."""


class UnavailableError(ServerError):
    """503: the node cannot serve the request now, or would miss its objective."""


class DeadlineError(ServerError):
    """504: the call took longer than its deadline or its processor time."""


class LimitError(ServerError):
    """507: the call or the tenant has reached a limit."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    405: BadRequestError,
    408: BadRequestError,
    409: ConflictError,
    410: GoneError,
    413: TooLargeError,
    421: BadRequestError,
    422: UnprocessableError,
    429: TooManyRequestsError,
    431: BadRequestError,
    499: CancelledError,
    503: UnavailableError,
    504: DeadlineError,
    507: LimitError,
}


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The exception for an error response."""
    fields = _fields(body)
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    code = headers.get("weir-error", "")
    nested = fields.get("error")
    # `/v1/embeddings` has errors in OpenAI's format.
    message = nested.get("message") if isinstance(nested, dict) else nested
    if not isinstance(message, str):
        message = body[:500].decode("utf-8", "replace") or "the response has no body"
    details = {name: value for name, value in fields.items() if name not in ("error", "code", "request_id")}
    return kind(
        status,
        code,
        message,
        request_id=headers.get("weir-request-id"),
        retry_after=_seconds(headers.get("retry-after")),
        details=details,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        # A date, which nodes do not send.
        return None
