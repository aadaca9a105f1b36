"""Removes debug sections from a module but keeps function names. zig's linker can only keep or
remove both.

    python keep_names.py FILE.wasm
"""

import sys


def length_at(module: bytes, at: int) -> tuple[int, int]:
    """Reads the LEB128 number at `at`. Returns the number and its end."""
    value = shift = 0
    while True:
        byte = module[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def without_debug_sections(module: bytes) -> bytes:
    kept, at = bytearray(module[:8]), 8
    while at < len(module):
        size, begin = length_at(module, at + 1)
        is_custom = module[at] == 0
        name_size, name = length_at(module, begin) if is_custom else (0, begin)
        if not module[name : name + name_size].startswith(b".debug_"):
            kept += module[at : begin + size]
        at = begin + size
    return bytes(kept)


if __name__ == "__main__":
    with open(sys.argv[1], "r+b") as file:
        kept = without_debug_sections(file.read())
        file.seek(0)
        file.write(kept)
        file.truncate()
