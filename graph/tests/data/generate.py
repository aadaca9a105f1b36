"""Write `operators.json`: a small graph for each operator and variant of its attributes, with the
results of ONNX Runtime.

    python3 -m venv .venv && .venv/bin/pip install onnx==1.23.2 onnxruntime==1.31.1
    .venv/bin/python generate.py            # writes operators.json beside it
    .venv/bin/python generate.py --check    # fails if operators.json is out of date

Inputs follow from a formula, which `operators.rs` implements, too: element `i` of input `n` is
`(i * 7919 + n * 104729 + 13) mod 1000`, for floats divided by 250 and minus 2, for integers modulo 7,
for booleans modulo 2, unless the case has explicit inputs.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
FLOAT, INT64, BOOL, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.INT32
NUMPY = {FLOAT: np.float32, INT64: np.int64, BOOL: np.bool_, INT32: np.int32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64, TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8}
CASES = []


def formula(number, shape, kind):
    count = int(np.prod(shape))
    raw = (np.arange(count, dtype=np.int64) * 7919 + number * 104729 + 13) % 1000
    if kind == FLOAT:
        values = (raw.astype(np.float32) / np.float32(250) - np.float32(2)).astype(np.float32)
    elif kind == BOOL:
        values = raw % 2 == 1
    else:
        values = (raw % 7).astype(NUMPY[kind])
    return values.reshape(shape)


def case(name, operator, inputs, opset=17, outputs=1, weights=(), domain="", **attributes):
    """One node. Inputs are shapes, or (shape, type), or arrays, which become weights; None omits an input."""
    names, ports, feeds, initialisers = [], [], {}, []
    for index, given in enumerate(inputs):
        if given is None:
            names.append("")
            continue
        names.append(f"i{index}")
        if isinstance(given, np.ndarray):
            initialisers.append(numpy_helper.from_array(given, f"i{index}"))
            continue
        shape, kind = given if isinstance(given, tuple) else (given, FLOAT)
        ports.append(helper.make_tensor_value_info(f"i{index}", kind, shape))
        feeds[f"i{index}"] = formula(len(feeds), shape, kind)
    made = [f"o{index}" for index in range(outputs)]
    node = helper.make_node(operator, names, made, domain=domain, **attributes)
    graph(name, [node], ports, feeds, initialisers, made, opset)


def graph(name, nodes, ports, feeds, initialisers, made, opset=17):
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    draft = helper.make_model(
        helper.make_graph(nodes, name, ports, [onnx.ValueInfoProto(name=output) for output in made], initialisers), opset_imports=opsets
    )
    draft.ir_version = 8 if opset < 21 else 10
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(draft.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    kinds = [helper.np_dtype_to_tensor_dtype(result.dtype) for result in results]
    del draft.graph.output[:]
    draft.graph.output.extend(
        helper.make_tensor_value_info(output, kind, list(result.shape)) for output, kind, result in zip(made, kinds, results)
    )
    CASES.append(
        {
            "name": name,
            "model": base64.b64encode(draft.SerializeToString(deterministic=True)).decode(),
            "outputs": [[float(value) if np.isfinite(value) else str(value) for value in np.round(result.astype(np.float64), 6).ravel()] for result in results],
        }
    )


def ints(*values):
    return np.array(values, dtype=np.int64)


def floats(*values):
    return np.array(values, dtype=np.float32)


def scalar(value):
    return np.array(value, dtype=np.float32)


def elementwise():
    for operator in ["Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Cos", "Sin", "Erf", "Exp", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "HardSwish", "LeakyRelu", "HardSigmoid", "Elu", "Selu", "Celu", "ThresholdedRelu"]:
        case(operator, operator, [[2, 3, 5]])
    for operator in ["Asinh", "Cosh", "Shrink", "Sinh", "Tan"]:
        case(operator, operator, [[2, 9]])
    case("Acosh", "Acosh", [np.abs(formula(0, [9], FLOAT)) + 1])
    case("Atanh", "Atanh", [formula(0, [9], FLOAT) / np.float32(2.1)])
    case("Shrink soft", "Shrink", [[2, 9]], lambd=1.0, bias=0.75)
    case("Swish", "Swish", [[2, 9]], opset=24, alpha=0.7)
    infinite = floats(1, np.nan, np.inf, -np.inf)
    case("IsInf", "IsInf", [infinite])
    case("IsInf positive", "IsInf", [infinite], detect_negative=0)
    case("IsInf negative", "IsInf", [infinite], detect_positive=0)
    case("IsInf neither", "IsInf", [infinite], detect_positive=0, detect_negative=0)
    case("Mish", "Mish", [[2, 9]], opset=18)
    case("Gelu", "Gelu", [[2, 9]], opset=20)
    case("Gelu tanh", "Gelu", [[2, 9]], opset=20, approximate="tanh")
    case("LeakyRelu alpha", "LeakyRelu", [[7]], alpha=0.3)
    case("Elu alpha", "Elu", [[7]], alpha=0.5)
    case("Celu alpha", "Celu", [[7]], alpha=2.0)
    case("HardSigmoid alpha", "HardSigmoid", [[9]], alpha=1 / 6, beta=0.5)
    case("Sqrt of squares", "Sqrt", [np.abs(formula(0, [9], FLOAT))])
    case("Log of what is positive", "Log", [np.abs(formula(0, [9], FLOAT)) + np.float32(0.1)])
    case("Not", "Not", [([3, 4], BOOL)])
    case("IsNaN", "IsNaN", [floats(1, np.nan, np.inf)])
    case("Relu int", "Relu", [np.array([-3, 0, 2], dtype=np.int32)])
    for operator in ["Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]:
        case(f"{operator} broadcast", operator, [[2, 1, 4], [3, 1]] if operator != "Pow" else [np.abs(formula(0, [2, 1, 4], FLOAT)), [3, 1]])
        case(f"{operator} int", operator, [([2, 5], INT64), np.array([[1], [3]], dtype=np.int64)])
    case("Div negative int", "Div", [ints(-7, 7, -7, 7), ints(2, -2, -2, 2)])
    for operator in ["And", "Or", "Xor"]:
        case(operator, operator, [([2, 3], BOOL), ([3], BOOL)])
    case("Mod int", "Mod", [ints(-7, 7, -7, 7), ints(3, -3, -3, 3)])
    case("Mod fmod", "Mod", [floats(-7, 7.5, -7, 7), floats(3, -3, -3, 3)], fmod=1)
    case("Pow mixed", "Pow", [[2, 3], ints(2)])
    for operator in ["Max", "Min", "Sum", "Mean"]:
        case(f"{operator} of three", operator, [[2, 3], [3], [2, 1]])
        case(f"{operator} of one", operator, [[2, 3]])
    case("Sum of twelve", "Sum", [[4]] * 12)
    case("Clip", "Clip", [[2, 9], scalar(-1), scalar(1.5)])
    case("Clip max", "Clip", [[2, 9], None, scalar(0.5)])
    case("Clip 6", "Clip", [[2, 9]], opset=6 + 1, min=0.0, max=1.0)
    case("Clip int", "Clip", [([9], INT64), np.array(2), np.array(4)])
    case("PRelu", "PRelu", [[2, 3, 4], floats(0.1, 0.2, 0.3).reshape([3, 1])])
    case("Where", "Where", [([2, 1], BOOL), [2, 3], [3]])
    case("Where int", "Where", [([2, 3], BOOL), ([2, 3], INT64), np.array(-9)])
    for to in [INT64, INT32, BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE]:
        case(f"Cast to {to}", "Cast", [[3, 5]], to=to)
    case("Cast int to float", "Cast", [([9], INT64)], to=FLOAT)
    case("Cast int to int", "Cast", [np.array([300, -1, 5], dtype=np.int64)], to=TensorProto.UINT8)
    case("Cast bool to float", "Cast", [([9], BOOL)], to=FLOAT)
    case("CastLike", "CastLike", [([9], INT64), [1]])
    case("Identity", "Identity", [[3, 4]])
    case("Dropout", "Dropout", [[3, 4]])
    case("Dropout 7", "Dropout", [[3, 4]], opset=7, ratio=0.5)
    case("Dropout mask", "Dropout", [[3, 4]], outputs=2)
    case("Dropout mask 10", "Dropout", [[3, 4]], opset=10, outputs=2)
    case("Dropout without training", "Dropout", [[3, 4], scalar(0.75), np.array(False)], outputs=2)
    case("Dropout training ratio 0", "Dropout", [[3, 4], scalar(0), np.array(True)], outputs=2)
    microsoft = {"domain": "com.microsoft"}
    case("QuickGelu", "QuickGelu", [[9]], **microsoft)
    case("FastGelu", "FastGelu", [[2, 4], [4]], **microsoft)
    case("BiasGelu", "BiasGelu", [[2, 4], [4]], **microsoft)
    case("microsoft Gelu", "Gelu", [[2, 4]], **microsoft)


def pictures():
    case("Conv", "Conv", [[2, 3, 7, 6], [4, 3, 3, 2]])
    case("Conv bias", "Conv", [[1, 3, 7, 6], [4, 3, 3, 2], [4]], pads=[1, 0, 2, 1], strides=[2, 1])
    case("Conv groups", "Conv", [[1, 4, 5, 5], [6, 2, 3, 3]], group=2, dilations=[2, 1], pads=[2, 2, 2, 2])
    case("Conv depthwise", "Conv", [[1, 4, 6, 6], [4, 1, 3, 3]], group=4, strides=[2, 2], pads=[1, 1, 1, 1])
    case("Conv 1d", "Conv", [[2, 3, 9], [4, 3, 3], [4]], pads=[1, 2], strides=[2])
    case("Conv same upper", "Conv", [[1, 2, 6, 5], [3, 2, 3, 2]], auto_pad="SAME_UPPER", strides=[2, 2])
    case("Conv same lower", "Conv", [[1, 2, 6, 5], [3, 2, 4, 2]], auto_pad="SAME_LOWER")
    case("Conv valid", "Conv", [[1, 2, 6, 5], [3, 2, 4, 2]], auto_pad="VALID")
    case("ConvTranspose", "ConvTranspose", [[2, 3, 4, 5], [3, 4, 3, 2]])
    case("ConvTranspose bias", "ConvTranspose", [[1, 3, 4, 5], [3, 4, 3, 2], [4]], strides=[2, 3], pads=[1, 0, 0, 1])
    case("ConvTranspose blocks", "ConvTranspose", [[2, 3, 4, 5], [3, 4, 2, 2], [4]], strides=[2, 2])
    case("ConvTranspose large step", "ConvTranspose", [[1, 2, 3, 3], [2, 2, 2, 2], [2]], strides=[3, 4])
    case("ConvTranspose output padding", "ConvTranspose", [[1, 2, 3, 4], [2, 3, 3, 3], [3]], strides=[2, 2], output_padding=[1, 1], pads=[1, 1, 1, 1])
    case("ConvTranspose wide padding", "ConvTranspose", [[1, 2, 5, 6], [2, 3, 3, 3]], strides=[2, 2], pads=[3, 4, 2, 5])
    case("ConvTranspose groups", "ConvTranspose", [[1, 4, 3, 4], [4, 3, 3, 3], [6]], group=2, strides=[2, 1], pads=[1, 1, 1, 1])
    case("ConvTranspose depthwise", "ConvTranspose", [[1, 4, 3, 4], [4, 1, 4, 4]], group=4, strides=[2, 2], pads=[1, 1, 1, 1])
    case("ConvTranspose dilated", "ConvTranspose", [[1, 2, 3, 4], [2, 3, 2, 3], [3]], strides=[2, 1], dilations=[2, 3], pads=[1, 0, 0, 2])
    case("ConvTranspose dilated groups", "ConvTranspose", [[1, 4, 3, 4], [4, 2, 2, 2]], group=2, strides=[2, 3], dilations=[2, 2])
    case("ConvTranspose 1d", "ConvTranspose", [[2, 3, 5], [3, 4, 4], [4]], strides=[2], pads=[1, 0], output_padding=[1])
    case("ConvTranspose same upper", "ConvTranspose", [[1, 2, 4, 4], [2, 3, 3, 4]], auto_pad="SAME_UPPER", strides=[2, 2])
    case("ConvTranspose same lower", "ConvTranspose", [[1, 2, 4, 4], [2, 3, 3, 4]], auto_pad="SAME_LOWER", strides=[2, 2])
    case("ConvTranspose valid", "ConvTranspose", [[1, 2, 4, 4], [2, 3, 3, 4]], auto_pad="VALID", strides=[2, 2])
    case("ConvTranspose shape", "ConvTranspose", [[1, 2, 3, 3], [2, 2, 3, 3]], strides=[3, 2], output_shape=[10, 6])
    case("ConvTranspose smaller shape", "ConvTranspose", [[1, 2, 4, 4], [2, 2, 3, 3], [2]], strides=[2, 2], output_shape=[8, 6])
    case("ConvTranspose constant filters", "ConvTranspose", [[1, 2, 4, 4], formula(5, [2, 3, 3, 3], FLOAT)], strides=[2, 2], pads=[1, 1, 1, 1])
    case("FusedConv", "FusedConv", [[1, 2, 4, 4], [3, 2, 3, 3], [3]], domain="com.microsoft", activation="LeakyRelu", activation_params=[0.2])
    case("MaxPool", "MaxPool", [[1, 2, 7, 6]], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    case("MaxPool ceil", "MaxPool", [[1, 2, 6, 6]], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    case("MaxPool ceil pads", "MaxPool", [[1, 1, 5, 5]], kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)
    case("MaxPool dilated", "MaxPool", [[1, 2, 8, 8]], kernel_shape=[3, 3], dilations=[2, 2])
    case("MaxPool 1d", "MaxPool", [[2, 3, 9]], kernel_shape=[3], strides=[2])
    case("MaxPool same", "MaxPool", [[1, 1, 5, 5]], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")
    case("AveragePool", "AveragePool", [[1, 2, 7, 6]], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    case("AveragePool padding", "AveragePool", [[1, 2, 7, 6]], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1)
    case("AveragePool ceil", "AveragePool", [[1, 2, 6, 6]], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    case("AveragePool ceil padding", "AveragePool", [[1, 2, 6, 6]], opset=19, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1)
    case("AveragePool dilated", "AveragePool", [[1, 1, 7, 7]], opset=19, kernel_shape=[2, 2], dilations=[2, 3])
    case("GlobalAveragePool", "GlobalAveragePool", [[2, 3, 4, 5]])
    case("GlobalMaxPool", "GlobalMaxPool", [[2, 3, 4]])
    case("LRN", "LRN", [[1, 7, 2, 3]], size=5, alpha=0.02, beta=0.6, bias=1.5)
    case("LRN odd", "LRN", [[2, 7, 3, 1]], size=3)
    positive = np.abs(formula(9, [3], FLOAT)) + np.float32(0.1)
    case("BatchNormalization", "BatchNormalization", [[2, 3, 4, 2], [3], [3], [3], positive], epsilon=0.01)
    case("BatchNormalization 9", "BatchNormalization", [[2, 3, 4], [3], [3], [3], positive], opset=9)
    case("InstanceNormalization", "InstanceNormalization", [[2, 3, 4, 5], [3], [3]], epsilon=0.01)
    case("GroupNormalization", "GroupNormalization", [[2, 6, 3, 3], [6], [6]], opset=21, num_groups=3)
    case("LayerNormalization", "LayerNormalization", [[2, 3, 4], [4], [4]])
    case("LayerNormalization axis", "LayerNormalization", [[2, 3, 4], [3, 4]], axis=1, epsilon=0.1)
    case("LayerNormalization moments", "LayerNormalization", [[2, 3, 4], [4], [4]], outputs=3, axis=-1, epsilon=0.1)
    case("LayerNormalization moments of two axes", "LayerNormalization", [[2, 3, 4], [3, 4]], outputs=3, axis=1)
    case("MeanVarianceNormalization", "MeanVarianceNormalization", [[2, 3, 2, 2]])
    case("MeanVarianceNormalization axes", "MeanVarianceNormalization", [[2, 3, 4]], axes=[1])
    case("LpPool", "LpPool", [[1, 2, 7, 6]], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    case("LpPool 3", "LpPool", [[2, 2, 7]], opset=18, kernel_shape=[3], p=3, pads=[2, 1])
    case("LpPool 1", "LpPool", [[1, 2, 7, 7]], opset=18, kernel_shape=[2, 2], dilations=[2, 2], p=1)
    for mode, outside in [("bilinear", "zeros"), ("bilinear", "border"), ("bilinear", "reflection"), ("nearest", "zeros"), ("nearest", "border"), ("nearest", "reflection")]:
        for aligned in [0, 1]:
            case(f"GridSample {mode} {outside} {aligned}", "GridSample", [[2, 3, 4, 5], [2, 3, 4, 2]], mode=mode, padding_mode=outside, align_corners=aligned)
    case("GridSample 20", "GridSample", [[1, 2, 3, 4], [1, 5, 2, 2]], opset=20)
    case("RMSNormalization", "RMSNormalization", [[2, 3, 4], [4]], opset=23)
    case("LpNormalization", "LpNormalization", [[2, 3, 4]], axis=1)
    case("LpNormalization 1", "LpNormalization", [[2, 3, 4]], p=1)
    zeroes = np.array([[0, 0, 0], [3, 0, -4]], dtype=np.float32)
    case("LpNormalization zeroes", "LpNormalization", [zeroes])
    case("LpNormalization 1 zeroes", "LpNormalization", [zeroes], p=1)
    case("SkipLayerNormalization", "SkipLayerNormalization", [[2, 3, 4], [2, 3, 4], [4], [4], [4]], domain="com.microsoft", epsilon=0.01)
    sizes = [("up", [1.0, 1.0, 2.0, 2.0]), ("uneven", [1.0, 1.0, 1.7, 2.3]), ("down", [1.0, 1.0, 0.6, 0.5])]
    for how, scales in sizes:
        for mode in ["nearest", "linear"]:
            for transform in ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]:
                case(f"Resize {how} {mode} {transform}", "Resize", [[1, 2, 5, 4], None, floats(*scales)], mode=mode, coordinate_transformation_mode=transform)
    for nearest in ["round_prefer_ceil", "floor", "ceil"]:
        case(f"Resize {nearest}", "Resize", [[1, 2, 5, 4], None, floats(1, 1, 1.5, 1.5)], mode="nearest", nearest_mode=nearest)
    case("Resize sizes", "Resize", [[1, 2, 5, 4], None, None, ints(1, 2, 3, 9)], mode="linear")
    case("Resize axes", "Resize", [[1, 2, 5, 4], None, floats(2, 2)], opset=18, mode="linear", axes=[2, 3])
    case("Resize symmetric", "Resize", [[1, 1, 5, 4], None, floats(1, 1, 1.7, 2.3)], opset=19, mode="linear", coordinate_transformation_mode="half_pixel_symmetric")
    case("Resize 10", "Resize", [[1, 2, 3, 4], floats(1, 1, 2, 3)], opset=10, mode="nearest")
    case("Upsample 9", "Upsample", [[1, 2, 3, 4], floats(1, 1, 2, 3)], opset=9, mode="nearest")
    case("Upsample 7", "Upsample", [[1, 2, 3, 4]], opset=7, mode="linear", scales=[1.0, 1.0, 2.0, 3.0])
    case("DepthToSpace", "DepthToSpace", [[1, 8, 2, 3]], blocksize=2)
    case("DepthToSpace CRD", "DepthToSpace", [[1, 8, 2, 3]], blocksize=2, mode="CRD")
    case("SpaceToDepth", "SpaceToDepth", [[1, 2, 4, 6]], blocksize=2)


def moves():
    case("Reshape", "Reshape", [[2, 3, 4], ints(0, -1, 2)])
    case("Reshape allowzero", "Reshape", [[2, 3], ints(3, 2)], allowzero=1)
    case("Flatten", "Flatten", [[2, 3, 4]])
    case("Flatten 0", "Flatten", [[2, 3, 4]], axis=0)
    case("Flatten -1", "Flatten", [[2, 3, 4]], axis=-1)
    case("Squeeze", "Squeeze", [[1, 3, 1], ints(0)])
    case("Squeeze all", "Squeeze", [[1, 3, 1]])
    case("Squeeze 11", "Squeeze", [[1, 3, 1]], opset=11, axes=[2])
    case("Unsqueeze", "Unsqueeze", [[3, 4], ints(0, -1)])
    case("Unsqueeze 11", "Unsqueeze", [[3, 4]], opset=11, axes=[1])
    case("Transpose", "Transpose", [[2, 3, 4]])
    case("Transpose perm", "Transpose", [[2, 3, 4, 5]], perm=[0, 2, 3, 1])
    case("Expand", "Expand", [[3, 1], ints(2, 1, 4)])
    case("Tile", "Tile", [[2, 3], ints(2, 2)])
    case("Concat", "Concat", [[2, 3], [2, 1], [2, 4]], axis=1)
    case("Concat -2", "Concat", [[2, 3], [1, 3]], axis=-2)
    case("Concat one", "Concat", [[2, 3]], axis=0)
    case("Slice", "Slice", [[5, 6], ints(1, 0), ints(4, 100), ints(0, 1), ints(2, 3)])
    case("Slice reversed", "Slice", [[5, 6], ints(-1), ints(-100), ints(1), ints(-2)])
    case("Slice 9", "Slice", [[5, 6]], opset=9, starts=[1, -3], ends=[3, 100], axes=[0, 1])
    case("Split", "Split", [[2, 6], ints(1, 2, 3)], outputs=3, axis=1)
    case("Split equal", "Split", [[6, 2]], outputs=3)
    case("Split 11", "Split", [[2, 6]], opset=11, outputs=2, axis=1, split=[4, 2])
    case("Split 18", "Split", [[7, 2]], opset=18, outputs=3, num_outputs=3)
    case("Pad", "Pad", [[2, 3], ints(1, 0, 0, 2), scalar(1.5)])
    case("Pad negative", "Pad", [[4, 5], ints(-1, 1, 0, -2)])
    case("Pad edge", "Pad", [[3, 4], ints(1, 2, 2, 1)], mode="edge")
    case("Pad reflect", "Pad", [[3, 4], ints(1, 2, 2, 1)], mode="reflect")
    case("Pad reflect picture", "Pad", [[1, 2, 4, 5], ints(0, 0, 1, 2, 0, 0, 3, 1)], mode="reflect")
    case("Pad 18", "Pad", [[2, 3], ints(1, 2), None, ints(1)], opset=18)
    case("Pad 10", "Pad", [[2, 3]], opset=10, pads=[0, 1, 1, 0], value=2.0)
    case("Gather", "Gather", [[4, 3, 2], ints(0, -1, 2)], axis=1)
    case("Gather scalar", "Gather", [[4, 3], np.array(-2)], axis=0)
    case("Gather given", "Gather", [[7, 3], ([2, 2], INT64)])
    case("GatherElements", "GatherElements", [[3, 4], np.array([[0, -1], [2, 1]])], axis=0)
    case("GatherElements given", "GatherElements", [[2, 7], ([2, 3], INT64)], axis=1)
    case("GatherND", "GatherND", [[3, 4], np.array([[2], [0]])])
    case("GatherND pairs", "GatherND", [[3, 4, 2], np.array([[2, -1], [0, 1], [-3, 3]])])
    case("GatherND given", "GatherND", [[7, 7, 2], ([2, 3, 2], INT64)])
    case("ScatterND", "ScatterND", [[5, 2], np.array([[3], [-5]]), [2, 2]])
    case("ScatterND pairs", "ScatterND", [[3, 4], np.array([[2, -1], [0, 1], [-3, 3]]), [3]])
    case("ScatterND given", "ScatterND", [[7, 2, 3], ([4, 1], INT64), [4, 2, 3]], opset=18)
    for reduction in ["add", "mul", "max", "min"]:
        case(f"ScatterND {reduction}", "ScatterND", [[7, 2], ([9, 1], INT64), [9, 2]], opset=18, reduction=reduction)
        case(f"ScatterElements {reduction}", "ScatterElements", [[2, 7], ([2, 9], INT64), [2, 9]], opset=18, axis=1, reduction=reduction)
        case(f"ScatterElements {reduction} int", "ScatterElements", [([7], INT64), ([9], INT64), ([9], INT64)], opset=18, reduction=reduction)
    case("ScatterElements", "ScatterElements", [[3, 4], np.array([[1, -3], [2, 0]]), [2, 2]])
    case("ScatterElements axis", "ScatterElements", [[3, 4, 2], np.array([[[1, -1]], [[2, 0]]]), [2, 1, 2]], axis=1)
    case("ScatterElements given", "ScatterElements", [[7, 3], ([2, 2], INT64), [2, 2]])
    case("ScatterElements given axis", "ScatterElements", [[3, 7, 2], ([2, 3, 1], INT32), [2, 3, 1]], axis=1)
    case("Scatter", "Scatter", [[3, 4], np.array([[1, -3], [2, 0]]), [2, 2]], opset=10, axis=1)
    case("Trilu", "Trilu", [[2, 4, 4]])
    case("Trilu lower", "Trilu", [[4, 5], np.array(-1)], upper=0)
    case("OneHot", "OneHot", [ints(1, -1, 7), np.array(4), floats(0.25, 2)])
    case("OneHot axis", "OneHot", [([2, 3], INT64), np.array(7), floats(0, 1)], axis=1)
    case("Shape", "Shape", [[2, 3, 4]])
    case("Shape part", "Shape", [[2, 3, 4]], start=-2, end=-1)
    case("Size", "Size", [[2, 3, 4]])
    case("Range", "Range", [np.array(2), np.array(11), np.array(3)])
    case("Range float", "Range", [scalar(3), scalar(0), scalar(-0.7)])
    case("ConstantOfShape", "ConstantOfShape", [ints(2, 3)], value=helper.make_tensor("v", INT64, [1], [7]))
    case("ConstantOfShape zeros", "ConstantOfShape", [ints(2)])
    case("NonZero", "NonZero", [np.array([[0, 2], [3, 0], [0, 1]], dtype=np.int64)])


def rows():
    for operator in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]:
        if operator != "ReduceSum":
            case(f"{operator} 13", operator, [[2, 3, 4]], opset=13, axes=[1])
            case(f"{operator} all", operator, [[2, 3, 4]], opset=13, keepdims=0)
        case(f"{operator} 18", operator, [[2, 3, 4], ints(0, -1)], opset=18, keepdims=0)
    case("ReduceLogSum", "ReduceLogSum", [np.abs(formula(0, [2, 3, 4], FLOAT))], opset=13, axes=[2])
    case("ReduceSum int", "ReduceSum", [([2, 3], INT64), ints(1)])
    case("ReduceSum noop", "ReduceSum", [[2, 3]], noop_with_empty_axes=1)
    case("Softmax", "Softmax", [[2, 3, 4]])
    case("Softmax axis", "Softmax", [[2, 3, 4]], axis=1)
    case("Softmax 11", "Softmax", [[2, 3, 4]], opset=11, axis=1)
    case("LogSoftmax", "LogSoftmax", [[2, 5]])
    case("ArgMax", "ArgMax", [[2, 5, 3]], axis=1)
    case("ArgMax last", "ArgMax", [floats(1, 3, 3, 0)], keepdims=0, select_last_index=1)
    case("Hardmax", "Hardmax", [[2, 5, 3]])
    case("Hardmax axis", "Hardmax", [[2, 5, 3]], axis=1)
    case("Hardmax equal", "Hardmax", [floats(1, 3, 3, 0)])
    case("Hardmax 11", "Hardmax", [[2, 5, 3]], opset=11, axis=1)
    case("ArgMin", "ArgMin", [[2, 5, 3]], axis=-1, keepdims=0)
    case("TopK", "TopK", [[2, 6], ints(3)], outputs=2)
    case("TopK smallest", "TopK", [[5, 2], ints(2)], outputs=2, axis=0, largest=0)
    case("CumSum", "CumSum", [[2, 4], np.array(1)])
    case("CumSum exclusive reverse", "CumSum", [[3, 4], np.array(0)], exclusive=1, reverse=1)


def products():
    case("MatMul", "MatMul", [[3, 4], [4, 5]])
    case("MatMul batch", "MatMul", [[2, 3, 4], [4, 5]])
    case("MatMul broadcast", "MatMul", [[2, 1, 3, 4], [5, 4, 2]])
    case("MatMul vector left", "MatMul", [[4], [2, 4, 5]])
    case("MatMul vector right", "MatMul", [[2, 3, 4], [4]])
    case("MatMul dot", "MatMul", [[4], [4]])
    case("MatMul broadcast left", "MatMul", [[3, 4], [2, 4, 5]])
    case("Gemm", "Gemm", [[3, 4], [4, 5], [5]])
    case("Gemm transposed", "Gemm", [[4, 3], [5, 4], [3, 1]], transA=1, transB=1, alpha=0.5, beta=2.0)
    case("Gemm whole", "Gemm", [[3, 4], [5, 4], [3, 5]], transB=1)
    case("Gemm scalar", "Gemm", [[3, 4], [4, 5], scalar(3)])
    case("FusedMatMul", "FusedMatMul", [[2, 4, 3], [2, 5, 4]], domain="com.microsoft", transA=1, transB=1, alpha=0.25)
    case("Einsum", "Einsum", [[2, 3, 4], [2, 4, 5]], equation="bij,bjk->bik")
    case("Einsum heads", "Einsum", [[2, 3, 4, 5], [2, 6, 4, 5]], equation="bqhd,bkhd->bhqk")
    microsoft = {"domain": "com.microsoft"}
    case("MultiHeadAttention", "MultiHeadAttention", [[2, 3, 8], [2, 5, 8], [2, 5, 8]], num_heads=2, **microsoft)
    case("MultiHeadAttention bias", "MultiHeadAttention", [[1, 3, 8], [1, 3, 8], [1, 3, 8], None, None, [1, 2, 3, 3]], num_heads=2, **microsoft)
    case("microsoft Attention", "Attention", [[2, 3, 4], [4, 24], [24]], num_heads=2, **microsoft)
    case("microsoft Attention mask", "Attention", [[2, 3, 4], [4, 24], [24], np.array([[1, 1, 0], [1, 1, 1]], dtype=np.int32)], num_heads=2, **microsoft)


def attention():
    q, k, v = [2, 3, 4, 8], [2, 3, 6, 8], [2, 3, 6, 8]
    of23 = {"opset": 23}
    case("Attention", "Attention", [q, k, v], **of23)
    case("Attention scale", "Attention", [q, k, v], scale=0.1, **of23)
    case("Attention of several sizes", "Attention", [q, k, [2, 3, 6, 10]], **of23)
    case("Attention causal", "Attention", [q, k, v], is_causal=1, **of23)
    case("Attention heads over 128 elements", "Attention", [[1, 2, 2, 160], [1, 2, 3, 160], [1, 2, 3, 160]], **of23)
    for mask in [[4, 6], [3, 4, 6], [2, 1, 4, 6], [2, 3, 4, 6]]:
        case(f"Attention mask {mask}", "Attention", [q, k, v, mask], **of23)
        case(f"Attention boolean mask {mask}", "Attention", [q, k, v, (mask, BOOL)], is_causal=1, **of23)
    case("Attention softcap", "Attention", [q, k, v, [4, 6]], softcap=2.0, **of23)
    # Every second key is masked; the last query has none.
    closed = (np.arange(4 * 6) % 2 == 0).reshape(4, 6)
    closed[3] = False
    case("Attention query without keys", "Attention", [q, k, v, closed], **of23)
    for mode in range(4):
        # ONNX Runtime has another large number in place of negative infinity.
        case(f"Attention products {mode}", "Attention", [q, k, v, [4, 6]], outputs=4, qk_matmul_output_mode=mode, softcap=3.0, **of23)
    case("Attention past", "Attention", [q, [2, 3, 2, 8], [2, 3, 2, 10], [4, 7], [2, 3, 5, 8], [2, 3, 5, 10]], outputs=3, **of23)
    case("Attention past causal", "Attention", [q, [2, 3, 4, 8], [2, 3, 4, 8], None, [2, 3, 5, 8], [2, 3, 5, 8]], outputs=3, is_causal=1, opset=24)
    packed = {"q_num_heads": 4, "kv_num_heads": 2, **of23}
    case("Attention packed", "Attention", [[2, 4, 24], [2, 6, 24], [2, 6, 24]], q_num_heads=3, kv_num_heads=3, **of23)
    case("Attention packed causal", "Attention", [[2, 4, 24], [2, 6, 24], [2, 6, 24]], q_num_heads=3, kv_num_heads=3, is_causal=1, **of23)
    case("Attention packed groups", "Attention", [[2, 4, 32], [2, 6, 16], [2, 6, 12]], outputs=3, is_causal=1, **packed)
    case("Attention packed past", "Attention", [[2, 4, 32], [2, 2, 16], [2, 2, 16], [4, 7], [2, 2, 5, 8], [2, 2, 5, 8]], outputs=3, **packed)
    groups = [[2, 6, 4, 8], [2, 2, 5, 8], [2, 2, 5, 8]]
    for mask in [[4, 5], [6, 4, 5], [2, 1, 4, 5], [2, 6, 4, 5]]:
        case(f"Attention groups {mask}", "Attention", [*groups, mask], **of23)
    case("Attention groups of one sequence", "Attention", [[1, 6, 4, 8], [1, 2, 5, 8], [1, 2, 5, 8], [1, 6, 4, 5]], **of23)
    lens = [None, None, None, ints(3, 6)]
    case("Attention lengths", "Attention", [q, k, v, *lens], opset=24)
    case("Attention lengths causal", "Attention", [q, k, v, *lens], opset=24, is_causal=1)
    case("Attention lengths and mask", "Attention", [q, k, v, ([2, 1, 4, 6], BOOL), None, None, ([2], INT64)], opset=24, is_causal=1)
    positions = ([2, 3], INT64)
    case("RotaryEmbedding", "RotaryEmbedding", [[2, 4, 3, 8], [7, 4], [7, 4], positions], **of23)
    case("RotaryEmbedding interleaved", "RotaryEmbedding", [[2, 4, 3, 8], [7, 4], [7, 4], positions], interleaved=1, **of23)
    case("RotaryEmbedding part", "RotaryEmbedding", [[2, 4, 3, 8], [7, 2], [7, 2], positions], rotary_embedding_dim=4, **of23)
    case("RotaryEmbedding part interleaved", "RotaryEmbedding", [[2, 4, 3, 8], [7, 2], [7, 2], positions], rotary_embedding_dim=4, interleaved=1, **of23)
    case("RotaryEmbedding packed", "RotaryEmbedding", [[2, 3, 32], [7, 4], [7, 4], positions], num_heads=4, **of23)
    case("RotaryEmbedding without positions", "RotaryEmbedding", [[2, 4, 3, 8], [2, 3, 4], [2, 3, 4]], **of23)


def quantised():
    uint8, int8 = TensorProto.UINT8, TensorProto.INT8
    for name, zero in [("", np.uint8(3)), (" int8", np.int8(-4))]:
        case(f"QuantizeLinear{name}", "QuantizeLinear", [[2, 3, 4], scalar(0.01), np.array(zero)])
        case(f"QuantizeLinear axis{name}", "QuantizeLinear", [[2, 3, 4], floats(0.01, 0.1, 0.5), np.array([zero] * 3)], axis=1)
        case(f"DequantizeLinear{name}", "DequantizeLinear", [([2, 3, 4], uint8 if name == "" else int8), scalar(0.25), np.array(zero)])
        case(f"DequantizeLinear axis{name}", "DequantizeLinear", [([2, 3, 4], uint8 if name == "" else int8), floats(0.25, 0.1, 2), np.array([zero, 0, 1], dtype=zero.dtype)], axis=-2)
    case("QuantizeLinear without zero point", "QuantizeLinear", [[2, 3], scalar(0.01)])
    case("QuantizeLinear given scale", "QuantizeLinear", [[2, 3], np.abs(formula(1, [1], FLOAT)) + np.float32(0.1), np.array([5], dtype=np.uint8)])
    case("QuantizeLinear halves", "QuantizeLinear", [floats(-3, -1, 1, 3, 5, 7), scalar(2), np.array(7, dtype=np.int8)])
    case("QuantizeLinear blocks", "QuantizeLinear", [[2, 6], np.array([[0.1, 0.2, 0.3], [0.5, 0.01, 0.3]], dtype=np.float32), np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)], opset=21, axis=1, block_size=2)
    case("DequantizeLinear blocks", "DequantizeLinear", [([4, 3], int8), np.abs(formula(1, [2, 3], FLOAT))], opset=21, axis=0, block_size=2)
    case("DequantizeLinear int32", "DequantizeLinear", [([2, 3], INT32), scalar(0.3)])
    case("DequantizeLinear weights", "DequantizeLinear", [np.arange(-6, 6, dtype=np.int8).reshape(3, 4), floats(0.25, 0.1, 2)], axis=0)
    case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [[3, 5]], outputs=3)
    case("DynamicQuantizeLinear positive", "DynamicQuantizeLinear", [np.abs(formula(0, [9], FLOAT)) + 1], outputs=3)
    case("DynamicQuantizeLinear negative", "DynamicQuantizeLinear", [-np.abs(formula(0, [9], FLOAT)) - 1], outputs=3)
    case("DynamicQuantizeLinear zeroes", "DynamicQuantizeLinear", [np.zeros([3], dtype=np.float32)], outputs=3)
    case("MatMulInteger", "MatMulInteger", [([2, 3, 4], uint8), ([4, 5], uint8), np.array(3, dtype=np.uint8), np.array(2, dtype=np.uint8)])
    case("MatMulInteger int8", "MatMulInteger", [([3, 4], uint8), ([4, 5], int8), None, np.array([1, -2, 3, 0, 5], dtype=np.int8)])
    case("MatMulInteger large", "MatMulInteger", [np.full([1, 257], 255, dtype=np.uint8), np.full([257, 1], 255, dtype=np.uint8)])
    quantities = [scalar(0.1), np.array(3, dtype=np.uint8)]
    case("QLinearMatMul", "QLinearMatMul", [([2, 3, 4], uint8), *quantities, ([4, 5], uint8), scalar(0.2), np.array(2, dtype=np.uint8), scalar(0.03), np.array(100, dtype=np.uint8)])
    case("QLinearMatMul columns", "QLinearMatMul", [([3, 4], uint8), *quantities, ([4, 2], int8), floats(0.2, 0.5), np.array([2, -3], dtype=np.int8), scalar(0.03), np.array(100, dtype=np.uint8)])
    case("ConvInteger", "ConvInteger", [([1, 2, 5, 4], uint8), ([3, 2, 3, 2], uint8), np.array(3, dtype=np.uint8), np.array(2, dtype=np.uint8)], pads=[1, 0, 1, 1], strides=[2, 1])
    case("ConvInteger groups", "ConvInteger", [([1, 4, 5, 4], uint8), ([4, 2, 2, 2], int8)], group=2)
    conv = [([1, 2, 5, 4], uint8), *quantities, ([3, 2, 3, 2], int8)]
    case("QLinearConv", "QLinearConv", [*conv, scalar(0.2), np.array(1, dtype=np.int8), scalar(0.05), np.array(50, dtype=np.uint8)], pads=[1, 0, 1, 1])
    case("QLinearConv bias", "QLinearConv", [*conv, floats(0.2, 0.1, 0.3), np.array([0, 0, 0], dtype=np.int8), scalar(0.05), np.array(50, dtype=np.uint8), np.array([10, -20, 30], dtype=np.int32)], strides=[2, 1])


def recurrent():
    def w(number, *shape):
        return formula(number, shape, FLOAT) / np.float32(4)

    steps, batch, features, hidden = 4, 2, 3, 5
    for operator, gates, outputs in [("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3)]:
        x = [steps, batch, features]
        sizes = {"hidden_size": hidden, "outputs": outputs}

        def weights(directions):
            return [w(1, directions, gates * hidden, features), w(2, directions, gates * hidden, hidden)]

        def state(directions):
            return [w(4, directions, batch, hidden)] * (outputs - 1)

        bias = w(3, 2, 2 * gates * hidden)
        case(operator, operator, [x, *weights(1)], **sizes)
        case(f"{operator} reverse", operator, [x, *weights(1), bias[:1]], direction="reverse", **sizes)
        case(f"{operator} bidirectional", operator, [x, *weights(2), bias, None, *state(2)], direction="bidirectional", **sizes)
        lens = np.array([3, 4], dtype=np.int32)
        case(f"{operator} lengths", operator, [x, *weights(2), bias, lens, *state(2)], direction="bidirectional", **sizes)
        case(f"{operator} given lengths", operator, [x, *weights(1), bias[:1], ([batch], INT32)], direction="reverse", **sizes)
        case(f"{operator} clip", operator, [x, *weights(1), bias[:1]], clip=0.3, **sizes)
        case(f"{operator} given weights", operator, [x, [1, gates * hidden, features], [1, gates * hidden, hidden], [1, 2 * gates * hidden]], **sizes)
        case(f"{operator} last step only", operator, [[1, 1, features], *weights(1)], **sizes)
    x, gru, lstm = [steps, batch, features], [w(1, 1, 15, 3), w(2, 1, 15, 5)], [w(1, 1, 20, 3), w(2, 1, 20, 5)]
    case("GRU linear before reset", "GRU", [x, *gru, w(3, 1, 30)], outputs=2, hidden_size=5, linear_before_reset=1)
    case("GRU linear before reset without bias", "GRU", [x, *gru], outputs=2, hidden_size=5, linear_before_reset=1)
    case("LSTM peepholes", "LSTM", [x, *lstm, w(3, 1, 40), None, None, None, w(6, 1, 15)], outputs=3, hidden_size=5)
    case("LSTM input forget", "LSTM", [x, *lstm, w(3, 1, 40)], outputs=3, hidden_size=5, input_forget=1)
    case("LSTM activations", "LSTM", [x, *lstm], outputs=3, hidden_size=5, activations=["HardSigmoid", "ScaledTanh", "Affine"], activation_alpha=[0.3, 1.5, 0.5], activation_beta=[0.4, 0.7, 0.1])
    case("RNN activations", "RNN", [x, w(1, 2, 5, 3), w(2, 2, 5, 5)], outputs=2, hidden_size=5, direction="bidirectional", activations=["Relu", "LeakyRelu"], activation_alpha=[0.2])
    case("GRU activations", "GRU", [x, *gru], outputs=2, hidden_size=5, activations=["Sigmoid", "Softplus"])


class Pattern:
    """A graph of several nodes, added in order."""

    def __init__(self, name, shape):
        self.name, self.nodes, self.weights = name, [], []
        self.port, self.feed = helper.make_tensor_value_info("x", FLOAT, shape), formula(0, shape, FLOAT)

    def __call__(self, operator, *inputs, **attributes):
        """Add a node; arrays and lists become weights."""
        made = f"v{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.weight(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, names, [made], **attributes))
        return made

    def weight(self, value):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(ints(*value) if isinstance(value, list) else np.asarray(value), name))
        return name

    def gives(self, output):
        graph(self.name, self.nodes, [self.port], {"x": self.feed}, self.weights, [output])


def patterns():
    def w(number, *shape):
        return formula(number, shape, FLOAT) / np.float32(4)

    p = Pattern("pattern: attention", [2, 5, 16])
    q, k, v = (p("Reshape", p("Add", p("MatMul", "x", w(n, 16, 16)), w(n + 3, 16)), [0, 0, 2, 8]) for n in (1, 2, 3))
    scores = p("MatMul", p("Transpose", q, perm=[0, 2, 1, 3]), p("Transpose", k, perm=[0, 2, 3, 1]))
    mask = np.where(np.arange(10).reshape(2, 1, 1, 5) % 4 == 3, np.float32(-1e4), np.float32(0))
    scores = p("Add", p("Div", scores, scalar(8**0.5)), mask)
    y = p("MatMul", p("Softmax", scores, axis=-1), p("Transpose", v, perm=[0, 2, 1, 3]))
    p.gives(p("MatMul", p("Reshape", p("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, -1]), w(9, 16, 3)))

    p = Pattern("pattern: attention of positions first", [2, 5, 16])
    packed = p("Add", p("MatMul", p("Transpose", "x", perm=[1, 0, 2]), w(1, 16, 48)), w(2, 48))
    packed = p("Unsqueeze", p("Reshape", packed, [5, 2, 3, 16]), [0])
    packed = p("Squeeze", p("Transpose", packed, perm=[3, 1, 2, 0, 4]), [3])
    q, k, v = (p("Transpose", p("Reshape", p("Gather", packed, np.array(n), axis=0), [5, 4, 8]), perm=[1, 0, 2]) for n in range(3))
    scores = p("MatMul", p("Mul", q, scalar(8**-0.5)), p("Transpose", k, perm=[0, 2, 1]))
    y = p("Transpose", p("MatMul", p("Softmax", scores, axis=-1), v), perm=[1, 0, 2])
    p.gives(p("Gemm", p("Reshape", y, [10, 16]), w(5, 16, 16), w(6, 16), transB=1))

    p = Pattern("pattern: layer normalisation", [2, 3, 8])
    summed = p("Add", "x", w(4, 2, 3, 8))
    centred = p("Sub", summed, p("ReduceMean", summed, axes=[-1]))
    variance = p("ReduceMean", p("Pow", centred, scalar(2)), axes=[-1])
    y = p("Div", centred, p("Sqrt", p("Add", variance, scalar(1e-5))))
    p.gives(p("Add", p("Add", p("Mul", y, w(1, 8)), w(2, 8)), summed))

    # Means of rows, subtracted from columns: must not be fused as layer normalisation.
    p = Pattern("pattern: means in the wrong place", [4, 4])
    mean = p("ReduceMean", "x", axes=[-1], keepdims=0)
    centred = p("Sub", "x", mean)
    variance = p("ReduceMean", p("Pow", centred, scalar(2)), axes=[-1])
    p.gives(p("Div", centred, p("Sqrt", p("Add", variance, scalar(1e-5)))))

    p = Pattern("pattern: mask seen under other dimensions", [2, 3, 4])
    mask = p("Reshape", p("Relu", p("ReduceMean", "x", axes=[1, 2], keepdims=0)), [2, 1, 1])
    p.gives(p("Softmax", p("Add", "x", mask), axis=-1))

    p = Pattern("pattern: residual block", [1, 4, 6, 6])

    def norm(value, number):
        positive = np.abs(w(number, 4)) + np.float32(0.5)
        return p("BatchNormalization", value, w(number, 4), w(number + 1, 4), w(number + 2, 4), positive)

    y = p("Relu", norm(p("Conv", "x", w(1, 4, 4, 3, 3), pads=[1, 1, 1, 1]), 3))
    y = norm(p("Conv", y, w(2, 4, 4, 3, 3), w(7, 4), pads=[1, 1, 1, 1]), 6)
    y = p("Add", p("Mul", y, w(11, 4, 1, 1)), w(12, 4, 1, 1))
    p.gives(p("Relu", p("Add", y, "x")))

    p = Pattern("pattern: squeeze and excite", [1, 4, 6, 6])
    y = p("Conv", "x", w(1, 4, 4, 1, 1), w(2, 4))
    y = p("Mul", y, p("Sigmoid", y))
    small = p("Relu", p("Conv", p("GlobalAveragePool", y), w(3, 2, 4, 1, 1), w(4, 2)))
    p.gives(p("Mul", y, p("HardSigmoid", p("Conv", small, w(5, 4, 2, 1, 1), w(6, 4)), alpha=1 / 6)))

    p = Pattern("pattern: detection neck", [1, 4, 6, 6])
    y = p("Conv", "x", w(1, 8, 4, 3, 3), w(2, 8), pads=[1, 1, 1, 1], strides=[2, 2])
    y = p("Mul", y, p("Sigmoid", y))
    pooled = p("MaxPool", y, kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    both = p("Concat", y, pooled, axis=1)
    up = p("Resize", both, np.array([], dtype=np.float32), floats(1, 1, 2, 2), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    boxes = p("Reshape", p("Slice", up, [0], [4], [1]), [1, 4, 36])
    p.gives(p("Mul", p("Add", p("Sigmoid", p("Transpose", boxes, perm=[0, 2, 1])), np.arange(36, dtype=np.float32).reshape(1, 36, 1)), scalar(8)))

    p = Pattern("pattern: quantised convolution", [1, 3, 6, 6])
    step, zero, none = scalar(0.02), np.array(100, dtype=np.uint8), np.array(0, dtype=np.int8)
    y = p("DequantizeLinear", p("QuantizeLinear", "x", step, zero), step, zero)
    filters = (np.arange(4 * 3 * 3 * 3) * 7919 % 255 - 127).astype(np.int8).reshape(4, 3, 3, 3)
    filters = p("DequantizeLinear", filters, floats(0.01, 0.02, 0.005, 0.03), np.zeros([4], dtype=np.int8), axis=0)
    bias = p("DequantizeLinear", np.array([100, -200, 300, 50], dtype=np.int32), scalar(0.001), np.array(0, dtype=np.int32))
    y = p("Relu", p("Conv", y, filters, bias, pads=[1, 1, 1, 1]))
    p.gives(p("DequantizeLinear", p("QuantizeLinear", y, scalar(0.05), none), scalar(0.05), none))

    p = Pattern("pattern: feed-forward", [2, 3, 8])
    y = p("Add", p("MatMul", "x", w(1, 8, 16)), w(2, 16))
    inner = p("Add", p("Erf", p("Div", y, scalar(2**0.5))), scalar(1))
    y = p("Mul", p("Mul", y, inner), scalar(0.5))
    p.gives(p("Add", p("Add", w(4, 8), p("MatMul", y, w(3, 16, 8))), "x"))


def main() -> int:
    for part in [elementwise, pictures, moves, rows, products, attention, quantised, recurrent, patterns]:
        part()
    text = "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in CASES) + "\n]\n"
    target = HERE / "operators.json"
    if "--check" in sys.argv:
        return 0 if target.read_text() == text else 1
    target.write_text(text)
    print(f"{len(CASES)} cases, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
