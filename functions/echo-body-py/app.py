"""Echoes the request body, like ../echo-body."""

from weir.http import Request, http_function


@http_function
def handle(request: Request) -> bytes:
    return request.body()
