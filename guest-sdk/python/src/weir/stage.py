"""Functions with the signature of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from weir._wit import tensors
from weir.coroutines import finish
from weir.errors import Error, InternalError, to_node
from weir.tensors import Tensors, from_pairs, outputs_to_pairs

Handler = TypeVar("Handler", bound=Callable[[Tensors], object])


def tensor_function(handler: Handler) -> Handler:
    """Make a component of ``handler``, which maps named tensors to named tensors, and may be a coroutine. Once, in ``app.py``.

    The handler stays an ordinary function.
    """

    class Stage:
        def run(self, inputs: list[tuple[str, tensors.Tensor]]) -> list[tuple[str, tensors.Tensor]]:
            try:
                outputs = finish(handler(from_pairs(inputs)))
            except Error as error:
                raise to_node(error) from None
            try:
                return outputs_to_pairs(outputs)
            except (TypeError, ValueError) as error:
                # An error of the function, and no exception in it.
                print(error, file=sys.stderr)
                raise to_node(InternalError(str(error))) from None

    # Where componentize-py looks for what the world exports.
    handler.__globals__["Stage"] = Stage
    return handler
