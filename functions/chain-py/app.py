"""Runs models one after another, like ../chain."""

from weir import Model
from weir.http import Request, Response, http_function


@http_function
def handle(request: Request) -> object:
    shape = request.query.get("shape", "")
    if not shape:
        return Response("give the shape of the body, like ?shape=8,32,32\n", 400)
    tensor = request.tensor("fp32", [int(size) for size in shape.split(",")])
    for name in filter(None, request.path.split("/")):
        model = Model.open(name)
        signature = model.describe()
        output = signature.outputs[0].name
        # One model is submitted, as a function would that has other work to do.
        tensor = model.submit({signature.inputs[0].name: tensor}, outputs=[output]).result()[output]
    if request.query.get("read") == "no":
        return str(tensor.nbytes)
    return tensor
