"""Reference embeddings: computed in numpy from the checkpoint, without the ONNX graph, and tokenised by the `tokenizers` package.

    python3 -m venv .venv && .venv/bin/pip install --no-deps --require-hashes -r requirements.txt -r requirements-reference.txt
    .venv/bin/python reference.py                        # writes reference.json
    .venv/bin/python reference.py --check minilm.onnx    # compares the output of ONNX Runtime with it

Intentional differences from the graph: fp64 throughout, one sentence at a time without padding, the token type added separately, erf from the
standard library. An error in either implementation shows up as a difference.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import checkpoint
import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-4

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone performs music outdoors with a guitar.",
    "The central bank raised interest rates by half a percent.",
    "Borrowing money became more expensive this week.",
    "Café naïve: 3.14159 ≈ π, 東京 — done!",
    "hi",
    " ".join(["Snow fell on the quiet harbour while the ferries waited for the storm to pass."] * 4),
]
# Pairs of the sentences above with similar meanings.
SIMILAR = [(0, 1), (2, 3)]
UNRELATED = [(0, 2), (0, 3), (1, 2), (1, 3)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or check the reference embeddings.")
    parser.add_argument("--check", type=Path, metavar="ONNX", help="compare this model with reference.json instead of writing it")
    model = parser.parse_args().check
    return check(model) if model else make()


def make() -> int:
    weights = {name: tensor.astype(np.float64) for name, tensor in checkpoint.weights().items()}
    tokenizer = Tokenizer.from_file(str(checkpoint.path("tokenizer.json")))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    entries = []
    for sentence in SENTENCES:
        ids = tokenizer.encode(sentence).ids
        embedding = embed(weights, ids).astype(np.float32)
        entries.append({"text": sentence, "ids": ids, "embedding": [round(float(x), 7) for x in embedding]})
    vectors = np.array([entry["embedding"] for entry in entries])
    closest = max(vectors[a] @ vectors[b] for a, b in UNRELATED)
    for a, b in SIMILAR:
        cosine = vectors[a] @ vectors[b]
        print(f"similar {cosine:.3f}, unrelated at most {closest:.3f}: {SENTENCES[a]!r} {SENTENCES[b]!r}")
        assert cosine > closest, "similar sentences must come out closer than unrelated ones"
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    text = f'{{"model": "all-MiniLM-L6-v2", "similar": {json.dumps(SIMILAR)}, "unrelated": {json.dumps(UNRELATED)}, "sentences": [\n{lines}\n]}}\n'
    (HERE / "reference.json").write_text(text)
    return 0


def check(model: Path) -> int:
    """Runs one padded batch of all sentences with ONNX Runtime, and compares the result with
    reference.json.
    """
    from onnxruntime import InferenceSession

    entries = json.loads((HERE / "reference.json").read_text())["sentences"]
    longest = max(len(entry["ids"]) for entry in entries)
    ids = np.zeros((len(entries), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, entry in enumerate(entries):
        ids[row, : len(entry["ids"])] = entry["ids"]
        mask[row, : len(entry["ids"])] = 1
    session = InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (found,) = session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})
    expected = np.array([entry["embedding"] for entry in entries])
    worst = float(np.abs(found - expected).max())
    print(f"largest difference over {len(entries)} sentences: {worst:.2e} (allowed: {TOLERANCE:.0e})")
    return 0 if worst <= TOLERANCE else 1


def embed(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Embedding of one sentence. Without padding, it needs no mask."""
    n = len(ids)
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][np.zeros(n, int)]
    x = x + w["embeddings.position_embeddings.weight"][:n]
    x = norm(w, "embeddings.LayerNorm", x)
    for layer in range(6):
        name = f"encoder.layer.{layer}"
        q, k, v = (dense(w, f"{name}.attention.self.{part}", x).reshape(n, 12, 32) for part in ("query", "key", "value"))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(32)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        context = np.einsum("hij,jhd->ihd", scores, v).reshape(n, 384)
        x = norm(w, f"{name}.attention.output.LayerNorm", x + dense(w, f"{name}.attention.output.dense", context))
        inner = dense(w, f"{name}.intermediate.dense", x)
        inner = inner * 0.5 * (1.0 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(w, f"{name}.output.LayerNorm", x + dense(w, f"{name}.output.dense", inner))
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def dense(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]


if __name__ == "__main__":
    sys.exit(main())
