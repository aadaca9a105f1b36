"""Peer server: a model directly behind uvicorn and starlette. BENCH_MODEL is the path of the model.

    BENCH_MODEL=M.onnx python -m uvicorn server:app --workers N
"""

import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from model import Model

model = Model(Path(os.environ["BENCH_MODEL"]))


async def infer(request: Request) -> Response:
    # On the event loop: with one thread per run, another thread would only add cost.
    return Response(model.answer(await request.body()), media_type="application/octet-stream")


app = Starlette(routes=[Route("/", infer, methods=["POST"])])
