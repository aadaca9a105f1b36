"""A small convolutional network in numpy, with training and ONNX export.

image [N,1,8,8] -> conv 3x3, 16 -> relu -> conv 3x3, 32 -> relu -> max pool 2x2 -> dense 64 -> relu -> dense 10 -> softmax
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Network:
    def __init__(self, rng: np.random.Generator):
        def weights(*shape, inputs):
            return rng.normal(0, np.sqrt(2 / inputs), shape).astype(np.float32)

        self.parameters = {
            "conv1.weight": weights(16, 1, 3, 3, inputs=9),
            "conv1.bias": np.zeros(16, np.float32),
            "conv2.weight": weights(32, 16, 3, 3, inputs=144),
            "conv2.bias": np.zeros(32, np.float32),
            "dense1.weight": weights(512, 64, inputs=512),
            "dense1.bias": np.zeros(64, np.float32),
            "dense2.weight": weights(64, 10, inputs=64),
            "dense2.bias": np.zeros(10, np.float32),
        }

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """The output of the ONNX graph for images [N,1,8,8]."""
        return self._forward(images, keep=None)[0]

    def gradients(self, images: np.ndarray, labels: np.ndarray, rng: np.random.Generator, drop: float):
        """Mean cross-entropy loss of a batch and its gradient by parameter, with dropout before the
        last layer.
        """
        p = self.parameters
        n = len(images)
        keep = (rng.random((n, 64)) >= drop).astype(np.float32) / np.float32(1 - drop)
        probs, (col1, a1, col2, a2, winners, flat, h, hd) = self._forward(images, keep)
        loss = -np.log(probs[np.arange(n), labels] + 1e-12).mean()

        d = probs.copy()
        d[np.arange(n), labels] -= 1
        d /= n
        grads = {"dense2.weight": hd.T @ d, "dense2.bias": d.sum(0)}
        d = (d @ p["dense2.weight"].T) * keep * (h > 0)
        grads["dense1.weight"], grads["dense1.bias"] = flat.T @ d, d.sum(0)
        d = (d @ p["dense1.weight"].T).reshape(n, 32, 4, 1, 4, 1)
        d = (d * winners).reshape(n, 32, 8, 8) * (a2 > 0)
        grads["conv2.weight"], grads["conv2.bias"], d = _conv_backward(d, col2, p["conv2.weight"])
        grads["conv1.weight"], grads["conv1.bias"], _ = _conv_backward(d * (a1 > 0), col1, p["conv1.weight"])
        return loss, grads

    def _forward(self, images, keep):
        p = self.parameters
        n = len(images)
        a1, col1 = _conv(images, p["conv1.weight"], p["conv1.bias"])
        a1 = np.maximum(a1, 0)
        a2, col2 = _conv(a1, p["conv2.weight"], p["conv2.bias"])
        a2 = np.maximum(a2, 0)
        blocks = a2.reshape(n, 32, 4, 2, 4, 2)
        pooled = blocks.max(axis=(3, 5), keepdims=True)
        flat = pooled.reshape(n, 512)
        h = np.maximum(flat @ p["dense1.weight"] + p["dense1.bias"], 0)
        hd = h if keep is None else h * keep
        logits = hd @ p["dense2.weight"] + p["dense2.bias"]
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exp / exp.sum(axis=1, keepdims=True), (col1, a1, col2, a2, blocks == pooled, flat, h, hd)

    def onnx(self) -> onnx.ModelProto:
        """The network as ONNX: input `image` [N,1,8,8], output `probabilities` [N,10]."""
        nodes = [
            helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], "conv1", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
            helper.make_node("Conv", ["relu1", "conv2.weight", "conv2.bias"], ["conv2"], "conv2", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
            helper.make_node("MaxPool", ["relu2"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["pooled"], ["flat"], "flatten", axis=1),
            helper.make_node("Gemm", ["flat", "dense1.weight", "dense1.bias"], ["dense1"], "dense1"),
            helper.make_node("Relu", ["dense1"], ["relu3"], "relu3"),
            helper.make_node("Gemm", ["relu3", "dense2.weight", "dense2.bias"], ["logits"], "dense2"),
            helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=-1),
        ]
        graph = helper.make_graph(
            nodes,
            "digits",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
            [numpy_helper.from_array(value, name) for name, value in self.parameters.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="weir")
        onnx.checker.check_model(model, full_check=True)
        return model


class Adam:
    def __init__(self, parameters: dict[str, np.ndarray]):
        self.parameters = parameters
        self.mean = {k: np.zeros_like(v) for k, v in parameters.items()}
        self.square = {k: np.zeros_like(v) for k, v in parameters.items()}
        self.step = 0

    def update(self, grads: dict[str, np.ndarray], rate: float, decay: float):
        self.step += 1
        for name, value in self.parameters.items():
            self.mean[name] += 0.1 * (grads[name] - self.mean[name])
            self.square[name] += 0.001 * (grads[name] ** 2 - self.square[name])
            mean = self.mean[name] / (1 - 0.9**self.step)
            square = self.square[name] / (1 - 0.999**self.step)
            if name.endswith("weight"):
                value -= rate * decay * value
            value -= rate * mean / (np.sqrt(square) + 1e-8)


def _conv(x, weight, bias):
    """A 3x3 convolution with padding 1, and the patches it was computed from."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    col = patches.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)
    out = col @ weight.reshape(len(weight), -1).T + bias
    return out.reshape(n, h, w, -1).transpose(0, 3, 1, 2), col


def _conv_backward(d, col, weight):
    n, o, h, w = d.shape
    c = weight.shape[1]
    d = d.transpose(0, 2, 3, 1).reshape(-1, o)
    d_weight = (d.T @ col).reshape(weight.shape)
    d_col = (d @ weight.reshape(o, -1)).reshape(n, h, w, c, 3, 3)
    d_x = np.zeros((n, c, h + 2, w + 2), np.float32)
    for i in range(3):
        for j in range(3):
            d_x[:, :, i : i + h, j : j + w] += d_col[..., i, j].transpose(0, 3, 1, 2)
    return d_weight, d.sum(0), d_x[:, :, 1:-1, 1:-1]
