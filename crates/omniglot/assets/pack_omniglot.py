"""Packs the Omniglot pictures into one small file that `trueshot-vision` embeds.

Reads a tar of `images_background/` and `images_evaluation/` (alphabet / characterNN / NNNN_MM.png,
any folder above them) and writes the form that `crates/vision/src/omniglot.rs` describes.

Why this form: eight pixels of a row make a byte, and a drawing is stored as strips of eight columns:
the bytes of a strip from top to bottom, then the next strip to the right. A pen stroke that runs
down the page is then a nearly constant run of bytes, which deflate packs a third smaller than the
same bytes row by row.

Usage: python pack_omniglot.py omniglot.tar.xz omniglot.bin
"""

import re
import struct
import sys
import tarfile
import zlib

import numpy as np
from PIL import Image

MAGIC = b"OMNIGLT1"
# The two folders of the published data; the file stores their index here.
SPLITS = ["images_background", "images_evaluation"]
# Width and height of every drawing in pixels, and drawings per character.
SIDE = 105
DRAWINGS = 20
# Split, alphabet, number of the character, number of the person who drew it.
MEMBER = re.compile(r"(?:^|/)(images_background|images_evaluation)/([^/]+)/character(\d\d)/\d+_(\d\d)\.png$")


def read_drawings(tar_path):
    """Maps (split, alphabet, character, drawer) to a drawing: a bool array [SIDE, SIDE], True where there is ink."""
    drawings = {}
    with tarfile.open(tar_path) as tar:
        for member in tar:
            match = MEMBER.search(member.name)
            if match is None:
                continue
            split, alphabet, character, drawer = match.groups()
            with Image.open(tar.extractfile(member)) as picture:
                ink = ~np.array(picture.convert("1"))
            assert ink.shape == (SIDE, SIDE), member.name
            drawings[SPLITS.index(split), alphabet, int(character), int(drawer)] = ink
    return drawings


def strips(ink):
    """One drawing as bytes: strips of eight columns from left to right, each from top to bottom."""
    return np.packbits(ink, axis=1).T.tobytes()


def pack(drawings):
    """Returns the bytes of the whole file.

    Characters and drawers are numbered from 1 without a gap, so their numbers are not stored.
    """
    table, streams = b"", b""
    alphabets = sorted({key[:2] for key in drawings})
    for split, alphabet in alphabets:
        keys = sorted(key for key in drawings if key[:2] == (split, alphabet))
        characters = len(keys) // DRAWINGS
        expected = [(c + 1, d + 1) for c in range(characters) for d in range(DRAWINGS)]
        assert [key[2:] for key in keys] == expected, alphabet
        stream = zlib.compress(b"".join(strips(drawings[key]) for key in keys), 9)
        name = alphabet.encode()
        table += struct.pack("<BHBI", split, characters, len(name), len(stream)) + name
        streams += stream
    return MAGIC + struct.pack("<HHH", SIDE, DRAWINGS, len(alphabets)) + table + streams


def main():
    tar_path, packed_path = sys.argv[1:]
    packed = pack(read_drawings(tar_path))
    with open(packed_path, "wb") as file:
        file.write(packed)


if __name__ == "__main__":
    main()
