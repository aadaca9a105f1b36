"""Expected responses: runs a model on requests in this process, and writes each response's tensors
beside its request.

    BENCH_MODEL=M.onnx python answer.py --json-bytes 190 REQUEST...    # writes REQUEST.answer
"""

import argparse
from pathlib import Path

from served import Served


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer requests from files.")
    parser.add_argument("--json-bytes", type=int, required=True, help="how many bytes of each request are JSON")
    parser.add_argument("requests", type=Path, nargs="+")
    arguments = parser.parse_args()
    served = Served()
    for path in arguments.requests:
        length, answer = served.answer((arguments.json_bytes, path.read_bytes()))
        Path(f"{path}.answer").write_bytes(answer[length:])


if __name__ == "__main__":
    main()
