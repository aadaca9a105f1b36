"""Files of the repository that the tests send to a node."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
DIGITS = REPOSITORY / "functions/classify-digits/model/digits.onnx"


def component(name: str) -> Path:
    """The component of a function in `functions/`, built by `cargo xtask functions`."""
    path = REPOSITORY / "target/functions" / f"{name}.wasm"
    assert path.is_file(), f"{path} is missing; build it with `cargo xtask functions`"
    return path


def model(name: str) -> Path:
    """A model of the tests."""
    return REPOSITORY / "tests/fixtures/models/good" / f"{name}.onnx"
