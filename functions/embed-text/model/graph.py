"""all-MiniLM-L6-v2 as an ONNX graph: a BERT encoder, the mean over the tokens, and normalisation to length one.

input_ids [N,S] int64, attention_mask [N,S] int64 -> embedding [N,384] fp32
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
LAYERS = 6
HEADS = 12
WIDTH = 384
POSITIONS = 512
# Epsilon of the layer norms, from the model's configuration.
EPSILON = 1e-12


def build(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The ONNX model for the weights of the checkpoint, with the checkpoint's names."""
    g = _Graph(weights)
    hidden = _embed(g)
    bias = _attention_bias(g)
    for layer in range(LAYERS):
        hidden = _encode(g, hidden, bias, f"encoder.layer.{layer}")
    _pool(g, hidden)
    return g.finish()


def _embed(g: "_Graph") -> str:
    # Every token is of type 0, so that row is added to the position table.
    positions = g.weights["embeddings.position_embeddings.weight"] + g.weights["embeddings.token_type_embeddings.weight"][0]
    g.constant("embeddings.positions", positions)
    words = g.add("Gather", [g.weight("embeddings.word_embeddings.weight"), "input_ids"], "embeddings.words", axis=0)
    shape = g.add("Shape", ["input_ids"], "embeddings.length", start=1, end=2)
    here = g.add("Slice", ["embeddings.positions", g.ints("zero", [0]), shape, g.ints("axis0", [0])], "embeddings.here")
    total = g.add("Add", [words, here], "embeddings.sum")
    return g.norm(total, "embeddings.LayerNorm")


def _attention_bias(g: "_Graph") -> str:
    """Attention bias: 0 for tokens, and -10000 for padding: [N,1,1,S]."""
    mask = g.add("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
    wide = g.add("Unsqueeze", [mask, g.ints("axes12", [1, 2])], "mask.wide")
    padding = g.add("Sub", [g.floats("one", 1.0), wide], "mask.padding")
    return g.add("Mul", [padding, g.floats("far", -10000.0)], "mask.bias")


def _encode(g: "_Graph", hidden: str, bias: str, name: str) -> str:
    split = g.ints("split", [0, 0, HEADS, WIDTH // HEADS])

    def heads(part: str, order: list[int]) -> str:
        projected = g.dense(hidden, f"{name}.attention.self.{part}")
        parted = g.add("Reshape", [projected, split], f"{name}.{part}.heads")
        return g.add("Transpose", [parted], f"{name}.{part}.turned", perm=order)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = g.add("MatMul", [query, key], f"{name}.scores")
    scaled = g.add("Div", [scores, g.floats("scale", float(np.sqrt(WIDTH / HEADS)))], f"{name}.scaled")
    masked = g.add("Add", [scaled, bias], f"{name}.masked")
    attention = g.add("Softmax", [masked], f"{name}.attention", axis=-1)
    context = g.add("MatMul", [attention, value], f"{name}.context")
    turned = g.add("Transpose", [context], f"{name}.context.turned", perm=[0, 2, 1, 3])
    joined = g.add("Reshape", [turned, g.ints("join", [0, 0, WIDTH])], f"{name}.context.joined")
    out = g.dense(joined, f"{name}.attention.output.dense")
    hidden = g.norm(g.add("Add", [out, hidden], f"{name}.attention.sum"), f"{name}.attention.output.LayerNorm")

    wide = g.gelu(g.dense(hidden, f"{name}.intermediate.dense"), f"{name}.gelu")
    narrow = g.dense(wide, f"{name}.output.dense")
    return g.norm(g.add("Add", [narrow, hidden], f"{name}.output.sum"), f"{name}.output.LayerNorm")


def _pool(g: "_Graph", hidden: str):
    """Mean over the unmasked tokens, divided by its length."""
    mask = g.add("Unsqueeze", ["mask.float", g.ints("axis2", [2])], "pool.mask")
    counted = g.add("Mul", [hidden, mask], "pool.counted")
    total = g.add("ReduceSum", [counted, g.ints("axis1", [1])], "pool.total", keepdims=0)
    tokens = g.add("ReduceSum", ["mask.float", g.ints("axis1", [1])], "pool.tokens", keepdims=1)
    tokens = g.add("Max", [tokens, g.floats("few", 1e-9)], "pool.tokens.some")
    mean = g.add("Div", [total, tokens], "pool.mean")
    length = g.add("ReduceL2", [mean], "pool.length", axes=[1], keepdims=1)
    length = g.add("Max", [length, g.floats("short", 1e-12)], "pool.length.some")
    g.add("Div", [mean, length], "embedding")


class _Graph:
    """Nodes and initialisers under construction. Every method returns the name of the added item.
    """

    def __init__(self, weights: dict[str, np.ndarray]):
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: dict[str, onnx.TensorProto] = {}

    def add(self, op: str, inputs: list[str], name: str, **attributes) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        if name not in self.initialisers:
            self.initialisers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def ints(self, name: str, values: list[int]) -> str:
        return self.constant(f"const.{name}", np.array(values, np.int64))

    def floats(self, name: str, value: float) -> str:
        return self.constant(f"const.{name}", np.array(value, np.float32))

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def dense(self, x: str, name: str) -> str:
        # The checkpoint stores [out, in]; MatMul expects [in, out].
        kernel = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        return self.add("Add", [self.add("MatMul", [x, kernel], f"{name}.product"), self.weight(f"{name}.bias")], name)

    def norm(self, x: str, name: str) -> str:
        inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.add("LayerNormalization", inputs, name, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str, name: str) -> str:
        """x / 2 * (1 + erf(x / sqrt 2)); this opset has no Gelu operator."""
        inner = self.add("Div", [x, self.floats("sqrt2", float(np.sqrt(2)))], f"{name}.inner")
        erf = self.add("Add", [self.add("Erf", [inner], f"{name}.erf"), self.floats("one", 1.0)], f"{name}.erf1")
        return self.add("Mul", [self.add("Mul", [x, erf], f"{name}.twice"), self.floats("half", 0.5)], name)

    def finish(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "all-MiniLM-L6-v2",
            [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", "S"]) for n in ("input_ids", "attention_mask")],
            [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", WIDTH])],
            list(self.initialisers.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="weir")
