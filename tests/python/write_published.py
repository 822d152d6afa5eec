"""Small data sets in the exact forms in which the large ones are published.

`python write_published.py FOLDER` writes all of them; crates/vision/tests/published holds what it wrote with NumPy 2,
and the Rust tests compare every pixel with `value` below. Pickles of Python 2 are written by Python 3's own pickler, changed
to write strings as Python 2 did.
"""

import io
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

PROTOCOLS = (0, 2, 4, 5)
FINE = ["apple", "bee", "trout"]
COARSE = ["fish", "fruit_and_vegetables", "insects"]
COARSE_OF = [1, 2, 0]


def value(row, y, x, channel):
    """The byte of one pixel and channel of image `row`."""
    return (row * 31 + y * 7 + x * 3 + channel * 101) % 256


def images(count, height, width):
    """Images whose every byte is known, with many different values, including 0 and 255."""
    return np.fromfunction(value, (count, height, width, 3), dtype=int).astype(np.uint8)


class Python2(pickle._Pickler):
    """Writes pickles like Python 2: text and bytes are the same, and NumPy modules have their old names."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text):
        """Writes text or bytes as a string of Python 2."""
        data = text.encode("latin-1") if isinstance(text, str) else text
        if len(data) < 256:
            self.write(pickle.SHORT_BINSTRING + struct.pack("<B", len(data)) + data)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    dispatch[bytes] = save_string
    dispatch[str] = save_string

    def save_global(self, function, name=None):
        """Writes a function or class by its module and name."""
        name = name or function.__qualname__
        module = function.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(function)

    dispatch[type(np.array)] = save_global
    dispatch[type] = save_global


def python2(data):
    """A pickle as Python 2 wrote it."""
    file = io.BytesIO()
    Python2(file, protocol=2).dump(data)
    return file.getvalue()


def png(pixels):
    """The bytes of a PNG file as an array, as OpenCV's encoder returns them."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)

    def chunk(name, data):
        """A chunk of a PNG file: length, name, data and checksum."""
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return np.frombuffer(data, dtype=np.uint8).copy()


def save(path, data):
    """Writes a file, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_mini(folder):
    """Caches of miniImageNet: three classes whose rows are not contiguous."""
    cache = {"image_data": images(6, 4, 5), "class_dict": {"n02": [0, 3], "n01": [5, 1], "n03": [2, 4]}}
    for protocol in PROTOCOLS:
        save(folder / f"mini-{protocol}/mini-imagenet-cache-train.pkl", pickle.dumps(cache, protocol))
    save(folder / "mini-python2/mini-imagenet-cache-train.pkl", python2(cache))
    for split, name in (("val", "n04"), ("test", "n05")):
        other = {"image_data": images(2, 4, 5), "class_dict": {name: np.array([1, 0])}}
        save(folder / f"mini-4/mini-imagenet-cache-{split}.pkl", pickle.dumps(other, 4))


def write_labelled(folder):
    """CIFAR-FS in the form of MetaOptNet."""
    data = {"data": images(4, 3, 3), "labels": [2, 0, 2, 11]}
    save(folder / "metaopt/CIFAR_FS_train.pickle", python2(data))


def write_tiered(folder):
    """tieredImageNet: PNG files in a pickle, and the form with arrays."""
    pictures = images(3, 4, 5)
    labels = {
        "label_specific": np.array([1, 0, 2]),
        "label_general": np.array([0, 0, 1]),
        "label_specific_str": ["crane", "owl", "crane"],
        "label_general_str": ["bird", "machine"],
    }
    files = [png(picture) for picture in pictures]
    # Older versions of OpenCV returned a column.
    files[1] = files[1].reshape(-1, 1)
    save(folder / "tiered/train_images_png.pkl", python2(files))
    save(folder / "tiered/train_labels.pkl", python2(labels))
    for name, write in (("train", np.savez), ("val", np.savez_compressed)):
        file = io.BytesIO()
        write(file, images=pictures)
        save(folder / f"tiered-npz/{name}_images.npz", file.getvalue())
        save(folder / f"tiered-npz/{name}_labels.pkl", pickle.dumps(labels, 4))


def write_cifar(folder):
    """CIFAR-100 in its Python and its binary form."""
    python, binary = folder / "cifar-100-python", folder / "cifar-100-binary"
    meta = {"fine_label_names": FINE, "coarse_label_names": COARSE}
    save(python / "meta", python2(meta))
    for file, names in (("fine_label_names.txt", FINE), ("coarse_label_names.txt", COARSE)):
        save(binary / file, "".join(f"{name}\n" for name in names).encode())
    for part, fine in (("train", [2, 0, 1]), ("test", [0, 2])):
        # All red values of an image, then all green and all blue ones.
        rows = images(len(fine), 32, 32).transpose(0, 3, 1, 2).reshape(len(fine), 3072)
        coarse = [COARSE_OF[label] for label in fine]
        data = {
            "data": rows.copy(),
            "fine_labels": fine,
            "coarse_labels": coarse,
            "filenames": [f"{FINE[label]}_s_{number:06}.png" for number, label in enumerate(fine)],
            "batch_label": f"{part}ing batch 1 of 1",
        }
        save(python / part, python2(data))
        records = (bytes([c, f]) + row.tobytes() for c, f, row in zip(coarse, fine, rows))
        save(binary / f"{part}.bin", b"".join(records))


def write_all(folder):
    """Writes all data sets into a folder."""
    folder = Path(folder)
    for write in (write_mini, write_labelled, write_tiered, write_cifar):
        write(folder)


if __name__ == "__main__":
    write_all(sys.argv[1])
