"""Copies a few alphabets of the packed drawings into a small file of the same form, for `trueshot demo`.

Three alphabets of the split `test`, whose characters no built-in model has seen, and one of the split
`val`, from which the demo takes outliers. The compressed streams are copied as they are.

Usage: python sample_omniglot.py ../../omniglot/assets/omniglot.bin omniglot-sample.bin
"""

import struct
import sys

# The form of a packed file is documented in `crates/vision/src/omniglot.rs`. HEADER: magic, side of a drawing,
# drawings per character, number of alphabets. ENTRY, before the name of an alphabet: split, number of characters,
# bytes of the name, bytes of the stream.
ALPHABETS = ["Hebrew", "Keble", "Tengwar", "ULOG"]
HEADER = struct.Struct("<8sHHH")
ENTRY = struct.Struct("<BHBI")


def read_alphabets(packed):
    """Maps the name of every alphabet in a packed file to its table entry and its stream, both as bytes."""
    _, _, _, count = HEADER.unpack_from(packed)
    table, place = [], HEADER.size
    for _ in range(count):
        _, _, name_length, stream_length = ENTRY.unpack_from(packed, place)
        entry = packed[place : place + ENTRY.size + name_length]
        table.append((entry, stream_length))
        place += len(entry)
    alphabets = {}
    for entry, stream_length in table:
        alphabets[entry[ENTRY.size :].decode()] = entry, packed[place : place + stream_length]
        place += stream_length
    return alphabets


def sample(packed):
    """Returns a packed file with only ALPHABETS."""
    magic, side, drawings, _ = HEADER.unpack_from(packed)
    chosen = [read_alphabets(packed)[name] for name in ALPHABETS]
    header = HEADER.pack(magic, side, drawings, len(chosen))
    return header + b"".join(entry for entry, _ in chosen) + b"".join(stream for _, stream in chosen)


def main():
    packed_path, sample_path = sys.argv[1:]
    with open(packed_path, "rb") as file:
        packed = file.read()
    with open(sample_path, "wb") as file:
        file.write(sample(packed))


if __name__ == "__main__":
    main()
