#!/usr/bin/env python3
"""Carry ONNX models to another machine without their weights.

    models.py strip MODEL...    --out FOLDER    # skeletons: graph, small weights, statistics
    models.py fill  SKELETON... --out FOLDER    # models of the same shapes and size, with random weights

`strip` replaces the values of each large fp32 weight by their mean and standard deviation. `fill`
draws values with that mean and deviation, so activations keep the magnitude that they have in the
original and different inputs give different outputs. Values depend only on the seed and the name of
the weight: every machine and every version of Python writes the same bytes. Needs only Python 3.8.
"""

import argparse
import hashlib
import math
import struct
import sys
from array import array
from operator import mul
from pathlib import Path

# Smaller weights stay in the skeleton.
WEIGHT_BYTES_MIN = 16 << 10
# Field numbers in onnx.proto: ModelProto, GraphProto and TensorProto.
GRAPH = 7
INITIALIZER = 5
DATA_TYPE, NAME, RAW_DATA, DOC_STRING = 2, 8, 9, 12
# TensorProto.DataType.FLOAT.
FLOAT = 1
# Wire types of protobuf.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# Prefix of the documentation string of a stripped weight.
MARK = "random"
# Standard deviation of uniformly distributed integers from 0 to 255.
LEVELS_DEVIATION = math.sqrt((256**2 - 1) / 12)


class Malformed(Exception):
    """The file is not a valid ONNX model."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("strip", "fill"))
    parser.add_argument("models", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where files of the same names go")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what `fill` draws values from (default 0)")
    arguments = parser.parse_args()
    change = stripped if arguments.command == "strip" else lambda tensor: filled(tensor, arguments.seed)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for path in arguments.models:
            model = with_initializers(memoryview(path.read_bytes()), change)
            write_whole(arguments.out / path.name, model)
            print(f"{sum(map(len, model)):10} {arguments.out / path.name}")
    except (OSError, Malformed) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        return 1
    return 0


def with_initializers(model, change):
    """Applies `change` to each initializer of a model. Returns the pieces of the new model."""
    return replaced(model, GRAPH, lambda graph: replaced(graph, INITIALIZER, change))


def stripped(tensor):
    """Removes the values of a large fp32 tensor. Other tensors are unchanged."""
    found = contents(tensor)
    raw = found.get(RAW_DATA, b"")
    if found.get(DATA_TYPE) != FLOAT or len(raw) < WEIGHT_BYTES_MIN:
        return [tensor]
    values = array("f")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    mean = sum(values) / len(values)
    deviation = math.sqrt(max(sum(map(mul, values, values)) / len(values) - mean * mean, 0.0))
    recipe = f"{MARK} {len(values)} {mean:.6e} {deviation:.6e}"
    return without(tensor, (RAW_DATA, DOC_STRING)) + field(DOC_STRING, [recipe.encode()])


def filled(tensor, seed):
    """Fills a tensor whose values `stripped` removed. Other tensors are unchanged."""
    found = contents(tensor)
    recipe = bytes(found.get(DOC_STRING, b"")).decode("utf-8", "replace").split()
    if recipe[:1] != [MARK]:
        return [tensor]
    count, mean, deviation = int(recipe[1]), float(recipe[2]), float(recipe[3])
    name = bytes(found.get(NAME, b"")).decode()
    return without(tensor, (DOC_STRING,)) + field(RAW_DATA, [random_floats(f"{seed}/{name}", count, mean, deviation)])


def random_floats(seed, count, mean, deviation):
    """Draws `count` little-endian fp32 values from 256 evenly spaced, equally likely levels."""
    levels = hashlib.shake_128(seed.encode()).digest(count)
    values = [struct.pack("<f", mean + deviation * (level - 127.5) / LEVELS_DEVIATION) for level in range(256)]
    floats = bytearray(4 * count)
    for place in range(4):
        floats[place::4] = levels.translate(bytes(value[place] for value in values))
    return floats


def replaced(message, number, change):
    """Applies `change` to the contents of each field with this number. Returns the pieces of the message."""
    pieces = []
    for found, kind, begin, value, end in fields(message):
        pieces += field(number, change(value)) if (found, kind) == (number, BYTES) else [message[begin:end]]
    return pieces


def without(message, numbers):
    return [message[begin:end] for number, _, begin, _, end in fields(message) if number not in numbers]


def contents(message):
    """The last value of each field, by number."""
    return {number: value for number, _, _, value, _ in fields(message)}


def field(number, pieces):
    """Encodes a length-delimited field from several pieces."""
    return [varint(number << 3 | BYTES) + varint(sum(map(len, pieces))), *pieces]


def fields(message):
    """Yields number, wire type, begin, value and end of each field."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, end = read_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            end = at + (8 if kind == FIXED64 else 4)
            value = message[at:end]
        elif kind == BYTES:
            length, at = read_varint(message, at)
            end = at + length
            value = message[at:end]
        else:
            raise Malformed("not an ONNX model")
        if end > len(message):
            raise Malformed("cut off, or not an ONNX model")
        yield number, kind, begin, value, end
        at = end


def read_varint(message, at):
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise Malformed("cut off, or not an ONNX model")


def varint(value):
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_whole(path, pieces):
    """Writes a file atomically."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.writelines(pieces)
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
