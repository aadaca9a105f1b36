"""Model behind BentoML: one service without batching, or two services, of which one accepts requests
and the other batches them.

    BENCH_MODEL=M.onnx python -m bentoml serve bento_service:OneByOne
    BENCH_MODEL=M.onnx python -m bentoml serve bento_service:Together
"""

import bentoml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from served import HEADER, MEDIA_TYPE, Message, Served

QUIET = {"access": {"enabled": False}}
# Lifetime of a connection between services. At the default of 100 calls, calls in flight fail.
CONNECTION = {"max_requests": 1_000_000_000, "max_age": 86_400.0}


async def infer(request: Request) -> Response:
    service = bentoml.get_current_service()
    length, answer = await service.answer((int(request.headers[HEADER]), await request.body()))
    return Response(answer, media_type=MEDIA_TYPE, headers={HEADER: str(length)})


# BentoML's own endpoints take JSON and files; other protocols need a mounted application.
app = Starlette(routes=[Route("/", infer, methods=["POST"])])


@bentoml.service(workers="cpu_count", logging=QUIET)
@bentoml.asgi_app(app, path="/v2")
class OneByOne:
    def __init__(self) -> None:
        self.served = Served()

    async def answer(self, request: Message) -> Message:
        return self.served.answer(request)


@bentoml.service(workers="cpu_count", logging=QUIET, runner_connection=CONNECTION)
class Batches:
    def __init__(self) -> None:
        self.served = Served()

    # Requests that would take longer are rejected.
    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000)
    def answer(self, requests: list[Message]) -> list[Message]:
        return self.served.answer_together(requests)


@bentoml.service(logging=QUIET)
@bentoml.asgi_app(app, path="/v2")
class Together:
    batches = bentoml.depends(Batches)

    async def answer(self, request: Message) -> Message:
        (answer,) = await self.batches.to_async.answer([request])
        return answer
