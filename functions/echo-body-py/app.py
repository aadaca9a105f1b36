"""Answers with the request's body, as ../echo-body does."""

from weir.http import Request, http_function


@http_function
def handle(request: Request) -> bytes:
    return request.body()
