"""Train the digit model on scikit-learn's `load_digits`, and write the model, its accuracy and the samples.

    python -m venv .venv && .venv/bin/pip install --require-hashes -r requirements.txt
    .venv/bin/python train.py

Writes `digits.onnx` and `metrics.json` here, and `../samples/`. Takes about two minutes on one core.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from network import Adam, Network
from onnxruntime import InferenceSession
from PIL import Image
from prepare import prepare
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 20
HELD_OUT = 0.25
VARIANTS = 24
EPOCHS = 14
BATCH = 128
HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "samples"


def main():
    data = load_digits()
    images = data.images / 16.0
    train_x, test_x, train_y, test_y = train_test_split(
        images, data.target, test_size=HELD_OUT, random_state=SEED, stratify=data.target
    )
    network = train(train_x, train_y)
    model = network.onnx().SerializeToString(deterministic=True)
    (HERE / "digits.onnx").write_bytes(model)
    metrics = measure(model, test_x, test_y)
    metrics |= {"train_images": len(train_x), "model_bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}
    write_samples(model, test_x, test_y)
    (HERE / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    print(json.dumps(metrics, indent=2))


def train(images: np.ndarray, labels: np.ndarray) -> Network:
    """Trains with Adam and a cosine learning rate, on the images and on distorted copies."""
    rng = np.random.default_rng(SEED)
    plain = np.stack([prepare(image) for image in images])
    varied = [np.stack([prepare(distorted(image, rng)) for image in images]) for _ in range(VARIANTS)]
    x = np.concatenate([plain, *varied])[:, None]
    y = np.tile(labels, VARIANTS + 1)
    network = Network(rng)
    adam = Adam(network.parameters)
    steps = EPOCHS * (len(x) // BATCH)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        losses = []
        for start in range(0, len(x) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            loss, grads = network.gradients(x[batch], y[batch], rng, drop=0.3)
            adam.update(grads, rate=2e-3 * 0.5 * (1 + np.cos(np.pi * adam.step / steps)), decay=0.01)
            losses.append(loss)
        print(f"epoch {epoch + 1:2} of {EPOCHS}: loss {np.mean(losses):.4f}")
    return network


def distorted(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Distorts a digit to simulate other handwriting: rotation, slant, stretch, stroke width."""
    big = np.clip(ndimage.zoom(np.pad(image, 2), 5, order=3), 0, 1)
    angle, slant = rng.uniform(-0.2, 0.2), rng.uniform(-0.25, 0.25)
    stretch = np.diag(np.exp(rng.uniform(-0.2, 0.2, 2)))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, 0], [slant, 1]]) @ stretch
    centre = np.array(big.shape) / 2 - 0.5
    moved = ndimage.affine_transform(big, matrix, centre - matrix @ centre, order=1)
    pen = rng.integers(0, 4)
    if pen == 1:
        moved = ndimage.grey_dilation(moved, 3)
    elif pen == 2:
        moved = ndimage.grey_erosion(moved, 3)
    elif pen == 3:
        moved = (moved > 0.45).astype(np.float64)
    if moved.max() < 0.5:
        return image
    return moved + rng.normal(0, 0.02, moved.shape)


def measure(model: bytes, images: np.ndarray, labels: np.ndarray) -> dict:
    """Accuracy on the held-out images, both unchanged and as large dark-on-light pictures, measured
    with ONNX Runtime.
    """
    session = InferenceSession(model, providers=["CPUExecutionProvider"])

    def accuracy(pictures):
        x = np.stack([prepare(picture) for picture in pictures])[:, None]
        (probabilities,) = session.run(["probabilities"], {"image": x})
        return round(float((probabilities.argmax(1) == labels).mean()), 4)

    return {
        "held_out_images": len(images),
        "held_out_accuracy": accuracy(images),
        "held_out_accuracy_as_pictures": accuracy([picture(image) / 255 for image in images]),
    }


def picture(image: np.ndarray) -> np.ndarray:
    """Simulates a photograph of the 8 x 8 image: 96 x 96, dark on light, with a margin. Grey, 0 to
    255.
    """
    smooth = np.clip(ndimage.zoom(np.pad(image, 2), 8, order=3), 0, 1)
    return np.round(255 * (1 - smooth)).astype(np.uint8)


def write_samples(model: bytes, images: np.ndarray, labels: np.ndarray):
    """Writes the first held-out image of each digit as a PNG, with its expected input and output of
    the model.
    """
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    SAMPLES.mkdir(exist_ok=True)
    expected = {}
    for digit in range(10):
        grey = picture(images[np.flatnonzero(labels == digit)[0]])
        Image.fromarray(grey).save(SAMPLES / f"{digit}.png", optimize=True)
        x = prepare(grey / 255)
        (probabilities,) = session.run(["probabilities"], {"image": x[None, None]})
        assert probabilities[0].argmax() == digit, f"the sample of {digit} is read as {probabilities[0].argmax()}"
        expected[f"{digit}.png"] = {
            "digit": digit,
            "input": [[round(float(v), 6) for v in row] for row in x],
            "probabilities": [round(float(v), 6) for v in probabilities[0]],
        }
    text = json.dumps(expected, indent=1)
    (SAMPLES / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
