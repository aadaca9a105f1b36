"""`{{ name }}` maps tensors to tensors: it scales `x` into 0 to 1 as `y`. Call it with

    curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
"""

from array import array

from weir import ElementType, Tensor, Tensors, tensor_function


@tensor_function
def run(inputs: Tensors) -> dict[str, Tensor]:
    x = inputs["x"]
    return {"y": Tensor(scale(x.array(ElementType.FP32)), x.shape)}


def scale(values: array) -> array:
    low, high = min(values, default=0), max(values, default=0)
    return array("f", [(value - low) / (high - low or 1) for value in values])
