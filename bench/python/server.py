"""The peer: a model behind uvicorn and starlette, with nothing in between. BENCH_MODEL names the model.

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
    # On the event loop: with one thread a run, handing over to another thread only costs.
    return Response(model.answer(await request.body()), media_type="application/octet-stream")


app = Starlette(routes=[Route("/", infer, methods=["POST"])])
