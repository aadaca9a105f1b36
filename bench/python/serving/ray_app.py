"""Model behind Ray Serve.

    BENCH_MODEL=M.onnx python ray_app.py --replicas 2 --folder FOLDER [--batch]    # prints its address; ends on SIGTERM
"""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from served import HEADER, MEDIA_TYPE, Message, Served

# More than the connections of any measurement, so that requests queue in the replicas.
ONGOING_MAX = 256


@serve.deployment
class OneByOne:
    def __init__(self) -> None:
        self.served = Served()

    async def answer(self, request: Message) -> Message:
        return self.served.answer(request)

    async def __call__(self, request: Request) -> Response:
        length, answer = await self.answer((int(request.headers[HEADER]), await request.body()))
        return Response(answer, media_type=MEDIA_TYPE, headers={HEADER: str(length)})


@serve.deployment
class Together(OneByOne.func_or_class):
    # Batch the requests that arrived during the last run; waiting for more was slower at every number
    # of connections.
    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def answer(self, requests: list[Message]) -> list[Message]:
        return self.served.answer_together(requests)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model with Ray.")
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where Ray keeps its sockets and logs; a short path")
    parser.add_argument("--batch", action="store_true", help="run requests together")
    arguments = parser.parse_args()
    haproxy_in(arguments.folder / "haproxy")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ray.init(num_cpus=arguments.replicas, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=str(arguments.folder))
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment = (Together if arguments.batch else OneByOne).options(
        num_replicas=arguments.replicas, max_ongoing_requests=ONGOING_MAX, ray_actor_options={"num_cpus": 1}
    )
    serve.run(deployment.bind(), logging_config={"enable_access_log": False})
    print(f"listening on http://127.0.0.1:{port}", flush=True)
    signal.pause()


def haproxy_in(folder: Path) -> None:
    """Moves HAProxy's files from /tmp to `folder`, if Ray uses it. Ray's processes inherit the environment."""
    os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] = str(folder / "haproxy.cfg")
    os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"] = str(folder / "admin.sock")
    os.environ["RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"] = str(folder / "metrics.sock")
    os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] = str(folder)
    os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_FILE"] = str(folder / "server-state")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
