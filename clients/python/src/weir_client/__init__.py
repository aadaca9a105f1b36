"""Client of Weir: deploys and calls functions, pushes models and runs them on arrays of NumPy.

    import numpy as np
    from weir_client import Client

    with Client() as weir:
        weir.models.push("digits", "digits.onnx")
        result = weir.infer("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)})
        print(result["probabilities"])

`AsyncClient` has the same methods as coroutines. `weir_client.testing` starts nodes for tests.
"""

from __future__ import annotations

from . import schema
from ._async import AsyncClient
from ._errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    CancelledError,
    ConflictError,
    DeadlineError,
    FunctionError,
    GoneError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeout,
    ServerError,
    TooLargeError,
    TooManyRequestsError,
    TransportError,
    UnavailableError,
    UnprocessableError,
    WeirError,
)
from ._response import CallInfo, Response
from ._retry import RetryPolicy
from ._sse import ServerSentEvent
from ._sync import Client
from ._tensors import InferResult, ObjectInput, Output

__all__ = [
    "ApiError",
    "AsyncClient",
    "AuthenticationError",
    "BadRequestError",
    "CallInfo",
    "CancelledError",
    "Client",
    "ConflictError",
    "DeadlineError",
    "FunctionError",
    "GoneError",
    "InferResult",
    "LimitError",
    "NotFoundError",
    "ObjectInput",
    "Output",
    "PermissionDeniedError",
    "ProtocolError",
    "RequestTimeout",
    "Response",
    "RetryPolicy",
    "ServerError",
    "ServerSentEvent",
    "TooLargeError",
    "TooManyRequestsError",
    "TransportError",
    "UnavailableError",
    "UnprocessableError",
    "WeirError",
    "schema",
]
