"""Minimal server: a model directly behind uvicorn and starlette.

    BENCH_MODEL=M.onnx python -m uvicorn uvicorn_app:app --workers N
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from served import HEADER, MEDIA_TYPE, Served

served = Served()


async def infer(request: Request) -> Response:
    # On the event loop: with one thread per run, another thread would only add cost.
    length, answer = served.answer((int(request.headers[HEADER]), await request.body()))
    return Response(answer, media_type=MEDIA_TYPE, headers={HEADER: str(length)})


app = Starlette(routes=[Route("/", infer, methods=["POST"])])
