"""Serves WebSockets, for tests, like ../echo-socket: the path selects how."""

from weir import StatusError
from weir.http import Request, http_function
from weir.websocket import WebSocket, accept, protocols


@http_function
def handle(request: Request) -> object:
    handlers = {"/echo": echo, "/ticks": ticks, "/flood": flood, "/close": close, "/fail": fail}
    if request.path == "/refuse":
        raise StatusError(403, "not you")
    if request.path not in handlers:
        raise StatusError(404, f"there is nothing at {request.path}")
    chosen = "echo" if "echo" in protocols(request) else None
    return accept(request, handlers[request.path], chosen)


async def echo(socket: WebSocket) -> None:
    async for message in socket:
        await socket.send(message)
    print(f"closed with {socket.closed.code} {socket.closed.reason}")


def ticks(socket: WebSocket) -> None:
    tick = 0
    while not socket.wait(0.05):
        socket.send(str(tick))
        tick += 1
    socket.send(socket.receive())


def flood(socket: WebSocket) -> None:
    sent = 0
    while True:
        socket.send(b"x" * 65_536)
        sent += 1
        print(f"sent {sent}")


def close(socket: WebSocket) -> None:
    code, _, reason = socket.receive().partition(" ")
    socket.close(int(code), reason)


def fail(socket: WebSocket) -> None:
    raise RuntimeError("as asked")
