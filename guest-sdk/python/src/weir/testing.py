"""Tests of functions without a node.

Outside a component, tensors are kept in memory, and models are defined by the test::

    from weir import Tensor, testing
    from weir.http import Request
    import app

    def test_the_likeliest_digit_is_the_answer():
        with testing.model("digits", lambda inputs: {"scores": Tensor([0.1, 0.9])}):
            assert app.handle(Request("POST", "/", body=b"...")).json() == {"digit": 1}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

from weir import _memory, _wit
from weir.client import Outgoing
from weir.coroutines import finish
from weir.errors import Error, to_node
from weir.http import Request
from weir.http import answer as answer_with
from weir.tensors import Tensor, Tensors, from_pairs, outputs_to_pairs

__all__ = ["images", "model", "outbound"]


@contextmanager
def images(decode: Callable[[bytes], Tensor]) -> Iterator[None]:
    """Decodes images with ``decode`` within a ``with`` block: a function from the bytes of an
    encoded image to the tensor that :func:`weir.images.decode` returns, whatever its options.
    """
    if _wit.IN_COMPONENT:
        raise RuntimeError("a node decodes images: weir.testing is for tests outside")

    def run(encoded: bytes, _: object) -> object:
        try:
            return decode(encoded)._raw
        except Error as error:
            raise to_node(error) from None

    _memory.DECODERS.append(run)
    try:
        yield
    finally:
        _memory.DECODERS.remove(run)


@contextmanager
def outbound(answer: Callable[[Request], object]) -> Iterator[list[Request]]:
    """Answers the requests of :func:`weir.http.fetch` with ``answer`` within a ``with`` block: a
    function like a handler, whose request has the whole URL as its ``path``. Yields the list of
    the requests::

        with testing.outbound(lambda request: {"temperature": 21}) as requests:
            assert app.handle(Request()).json() == {"advice": "T-shirt"}
        assert requests[0].path == "https://weather.example/today"
    """
    if _wit.IN_COMPONENT:
        raise RuntimeError("a node sends requests: weir.testing is for tests outside")
    requests: list[Request] = []

    def run(sent: Outgoing) -> tuple[int, list[tuple[str, str]], bytes]:
        request = Request(sent.method, sent.url, sent.headers, sent.body)
        requests.append(request)
        response = answer_with(answer, request)
        body = response.text().encode() if not isinstance(response.body, bytes) else response.body
        return response.status, response.headers, body

    _memory.SERVERS.append(run)
    try:
        yield requests
    finally:
        _memory.SERVERS.remove(run)


@contextmanager
def model(name: str, run: Callable[[Tensors], Mapping[str, Tensor]], version: str = "1") -> Iterator[None]:
    """Registers a model for ``Model.open(name)``, implemented by ``run``, within a ``with`` block.
    """
    if _wit.IN_COMPONENT:
        raise RuntimeError("models on a node are pushed, not made up: weir.testing is for tests outside")

    def infer(inputs: list) -> list:
        try:
            return outputs_to_pairs(finish(run(from_pairs(inputs))))
        except Error as error:
            raise to_node(error) from None

    description = SimpleNamespace(name=name, version=version, inputs=[], outputs=[])
    before = _memory.MODELS.get(name)
    _memory.MODELS[name] = SimpleNamespace(run=infer, description=description)
    try:
        yield
    finally:
        if before is None:
            del _memory.MODELS[name]
        else:
            _memory.MODELS[name] = before
