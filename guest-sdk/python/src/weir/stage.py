"""Functions with the signature of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weir._wit import tensors
from weir.coroutines import finish
from weir.errors import Error, to_node
from weir.tensors import Tensors, from_pairs, outputs_to_pairs

Handler = TypeVar("Handler", bound=Callable[[Tensors], object])


def tensor_function(handler: Handler) -> Handler:
    """Make a component of ``handler``, which maps named tensors to named tensors, and may be a coroutine. Once, in ``app.py``.

    The handler stays an ordinary function.
    """

    class Stage:
        def run(self, inputs: list[tuple[str, tensors.Tensor]]) -> list[tuple[str, tensors.Tensor]]:
            try:
                return outputs_to_pairs(finish(handler(from_pairs(inputs))))
            except Error as error:
                raise to_node(error) from None

    # Where componentize-py looks for what the world exports.
    handler.__globals__["Stage"] = Stage
    return handler
