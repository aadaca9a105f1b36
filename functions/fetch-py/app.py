"""Sends requests, for tests: any number of `?url=...`, concurrently, with the method and body of the
incoming request. `../fetch-js` does the same.
"""

from urllib.parse import parse_qs

from weir import Error, gather
from weir.http import Request, Response, fetch, http_function


@http_function
async def handle(request: Request) -> object:
    query = parse_qs(request.query_string)
    timeout = float(query["timeout"][0]) if "timeout" in query else None
    body = None if request.method == "GET" else request.body()
    headers = {"x-asked-by": "fetch-py"}
    try:
        responses = await gather(
            *(fetch(url, request.method, body=body, headers=headers, timeout=timeout) for url in query["url"])
        )
    except Error as error:
        return Response(f"{type(error).__name__}: {error}\n", 502)
    if len(responses) == 1:
        return Response(responses[0].body(), responses[0].status)
    return [response.text() for response in responses]
