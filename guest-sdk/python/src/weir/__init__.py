"""Write functions for Weir in Python: components that answer HTTP requests or map tensors to tensors, and run models that live on the node.

A function that answers HTTP requests and runs a model which its manifest grants it::

    from weir import Model, Tensor
    from weir.http import Request, http_function

    @http_function
    def handle(request: Request):
        pixels = [byte / 255 for byte in request.body()]
        scores = Model.open("digits").infer({"image": Tensor(pixels, (1, 1, 28, 28))}).only()
        return {"scores": scores.tolist()}

One with the signature of a model, which workflows and other functions can call like one::

    from weir import Tensor, Tensors, tensor_function

    @tensor_function
    def run(inputs: Tensors):
        x = inputs["x"]
        return {"y": Tensor([2 * value for value in x.array()], x.shape)}

``weir new NAME --template python`` makes such a project and ``weir build`` builds it. Every call gets a fresh copy of the interpreter as it
was after the imports: import at the top of the module, and do there what need not be done for every call.

Outside a component, on a developer's machine, there is no node. Tensors are then kept in memory and models are Python functions, so that a
function's own tests can call it: see :mod:`weir.testing`.
"""

from weir import objects
from weir.coroutines import gather
from weir.elements import ElementType
from weir.errors import (
    Cancelled,
    DeadlineExceeded,
    Error,
    InternalError,
    InvalidArgument,
    NotFound,
    NotGranted,
    ResourceExhausted,
    StatusError,
    Unavailable,
)
from weir.models import Description, Model, Pending, Port
from weir.stage import tensor_function
from weir.tensors import Tensor, Tensors

__all__ = [
    "Cancelled",
    "DeadlineExceeded",
    "Description",
    "ElementType",
    "Error",
    "InternalError",
    "InvalidArgument",
    "Model",
    "NotFound",
    "NotGranted",
    "Pending",
    "Port",
    "ResourceExhausted",
    "StatusError",
    "Tensor",
    "Tensors",
    "Unavailable",
    "gather",
    "objects",
    "tensor_function",
]

__version__ = "0.1.0"
