"""Train the small models of the examples and write them, and what they get right, here.

    python3 -m venv .venv
    .venv/bin/pip install --require-hashes -r ../../functions/classify-digits/model/requirements.txt
    .venv/bin/python train.py

`prepare.onnx` brings pixels as scanners give them, 0 to 16, into the form that the others take. `linear.onnx` has no hidden layer, and
`hidden.onnx` one of 32: quick, small, and wrong more often than the convolutions of `../../functions/classify-digits/model/digits.onnx`,
which is the third of the ensemble and the large one of the cascade. Data and held-out digits are that model's. Takes a few seconds.
"""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper
from onnxruntime import InferenceSession
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).resolve().parent
LARGE = HERE / "../../functions/classify-digits/model/digits.onnx"
# Those of the large model: what it has not been trained on, these have not either.
SEED = 20
HELD_OUT = 0.25
# The cascade's, as in cascade.toml.
SURE = 0.8


def main():
    data = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        data.data / 16.0, data.target, test_size=HELD_OUT, random_state=SEED, stratify=data.target
    )
    linear = LogisticRegression(C=20, max_iter=2_000).fit(train_x, train_y)
    hidden = MLPClassifier((32,), alpha=1e-2, max_iter=1_000, random_state=SEED).fit(train_x, train_y)
    models = {
        "prepare": prepare(),
        "linear": classifier([(linear.coef_.T, linear.intercept_)]),
        "hidden": classifier(list(zip(hidden.coefs_, hidden.intercepts_))),
    }
    for name, model in models.items():
        checker.check_model(model, full_check=True)
        (HERE / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    measure(models, np.round(test_x * 16).astype(np.uint8).reshape(-1, 8, 8), test_y)


def prepare():
    """pixels [N,8,8], uint8, 0 to 16 -> image [N,1,8,8], fp32, 0 to 1."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "most"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "channel"], ["image"]),
    ]
    constants = [
        numpy_helper.from_array(np.array(16, np.float32), "most"),
        numpy_helper.from_array(np.array([1], np.int64), "channel"),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["N", 8, 8])
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    return model("prepare", nodes, pixels, image, constants)


def classifier(layers):
    """image [N,1,8,8] -> probabilities [N,10]: dense layers with ReLU between them."""
    nodes, constants, last = [helper.make_node("Flatten", ["image"], ["flat"])], [], "flat"
    for i, (weights, bias) in enumerate(layers):
        constants += [
            numpy_helper.from_array(weights.astype(np.float32), f"weights{i}"),
            numpy_helper.from_array(bias.astype(np.float32), f"bias{i}"),
        ]
        nodes.append(helper.make_node("Gemm", [last, f"weights{i}", f"bias{i}"], [f"dense{i}"]))
        last = f"dense{i}"
        if i + 1 < len(layers):
            nodes.append(helper.make_node("Relu", [last], [f"relu{i}"]))
            last = f"relu{i}"
    nodes.append(helper.make_node("Softmax", [last], ["probabilities"], axis=-1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])
    return model("digits", nodes, image, probabilities, constants)


def model(name, nodes, given, gives, constants):
    graph = helper.make_graph(nodes, name, [given], [gives], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(models, pixels, labels):
    """What each gets right of the held-out digits, and both workflows, as ONNX Runtime and numpy have it."""
    session = {name: InferenceSession(model.SerializeToString()) for name, model in models.items()}
    session["large"] = InferenceSession(LARGE.read_bytes())
    (image,) = session["prepare"].run(None, {"pixels": pixels})
    of = {name: session[name].run(None, {"image": image})[0] for name in ["linear", "hidden", "large"]}
    of["ensemble"] = np.mean([of["linear"], of["hidden"], of["large"]], axis=0)
    unsure = of["linear"].max(1) < SURE
    surer = np.where((of["large"].max(1) > of["linear"].max(1))[:, None], of["large"], of["linear"])
    of["cascade"] = np.where(unsure[:, None], surer, of["linear"])
    metrics = {name: round(float((given.argmax(1) == labels).mean()), 4) for name, given in of.items()}
    metrics["asked_large_of_cascade"] = round(float(unsure.mean()), 4)
    metrics["held_out_images"] = len(labels)
    (HERE / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    # One that the cascade is sure of at once, and one that it asks the large model about and gets right by that.
    helped = unsure & (of["linear"].argmax(1) != labels) & (of["cascade"].argmax(1) == labels)
    for name, at in [("sure", np.flatnonzero(~unsure)[0]), ("unsure", np.flatnonzero(helped)[0])]:
        data = [int(pixel) for pixel in pixels[at].flatten()]
        tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 8, 8], "data": data}
        request = {"id": f"a {labels[at]}", "inputs": [tensor]}
        (HERE / f"{name}.json").write_text(json.dumps(request) + "\n")
    print(json.dumps(metrics, indent=2))


if __name__ == "__main__":
    main()
