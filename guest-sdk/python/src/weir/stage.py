"""Functions with the signature of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from weir._wit import tensors
from weir.errors import Error, to_node
from weir.tensors import Tensor, Tensors, from_pairs, to_pairs

Handler = TypeVar("Handler", bound=Callable[[Tensors], Mapping[str, Tensor]])


def tensor_function(handler: Handler) -> Handler:
    """Make a component of ``handler``, which maps named tensors to named tensors. Once, in the project's ``app.py``.

    The handler stays an ordinary function.
    """

    class Stage:
        def run(self, inputs: list[tuple[str, tensors.Tensor]]) -> list[tuple[str, tensors.Tensor]]:
            try:
                return to_pairs(handler(from_pairs(inputs)))
            except Error as error:
                raise to_node(error) from None

    # Where componentize-py looks for what the world exports.
    handler.__globals__["Stage"] = Stage
    return handler
