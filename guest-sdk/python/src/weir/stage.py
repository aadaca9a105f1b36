"""Tensor functions: functions with the signature of a model."""

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
    """Makes a component of ``handler``, which maps named tensors to named tensors, and may be a
    coroutine. Use it once, in ``app.py``.

    The handler remains an ordinary function.
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
                # The fault is in the function's result, so the traceback has no meaning.
                print(error, file=sys.stderr)
                raise to_node(InternalError(str(error))) from None

    # componentize-py looks up the world's export under this name.
    handler.__globals__["Stage"] = Stage
    return handler
