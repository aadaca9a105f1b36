"""SDK for Weir functions in Python: components that answer HTTP requests or map tensors to
tensors, and run models on the node.

A function that answers HTTP requests and runs a model granted by its manifest::

    from weir import Model, Tensor
    from weir.http import Request, http_function

    @http_function
    def handle(request: Request):
        pixels = [byte / 255 for byte in request.body()]
        scores = Model.open("digits").infer({"image": Tensor(pixels, (1, 1, 28, 28))}).only()
        return {"scores": scores.tolist()}

A function with the signature of a model, which workflows and other functions can call like a
model::

    from weir import Tensor, Tensors, tensor_function

    @tensor_function
    def run(inputs: Tensors):
        x = inputs["x"]
        return {"y": Tensor([2 * value for value in x.array()], x.shape)}

``weir new NAME --template python`` creates a project and ``weir build`` builds it. Every call runs
on a fresh copy of the interpreter after its imports: import at the top of the module, and do
one-time work there.

Outside a component there is no node. Tensors are then kept in memory and models are Python
functions, so that a function's tests can call it: see :mod:`weir.testing`.
"""

from weir import images, objects
from weir.coroutines import gather
from weir.elements import ElementType
from weir.errors import (
    Cancelled,
    DeadlineExceeded,
    Error,
    InternalError,
    InvalidArgument,
    InvalidRun,
    NotFound,
    NotGranted,
    RequestFailed,
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
    "InvalidRun",
    "Model",
    "NotFound",
    "NotGranted",
    "Pending",
    "Port",
    "RequestFailed",
    "ResourceExhausted",
    "StatusError",
    "Tensor",
    "Tensors",
    "Unavailable",
    "gather",
    "images",
    "objects",
    "tensor_function",
]

__version__ = "0.1.0"
