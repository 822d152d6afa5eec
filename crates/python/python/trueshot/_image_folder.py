"""Images in a folder of class folders (:func:`list_images`), and their decoding with Pillow (:func:`read_image`).

Names, classes and skipped files are those of the command line, whose rules are in crates/vision/src/source; the
constants below are the same there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

_EXTENSIONS = {"bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "png", "tif", "tiff", "webp"}
# System files, and files that a repair adds to a folder.
_HIDDEN = {"Thumbs.db", "thumbs.db", "__MACOSX", "_quarantine", "trueshot-repair.jsonl"}
# Folders with only these names are splits of a data set, not classes.
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "trainval"}
# The largest number of folders within each other; more are probably a mistake in the path.
_MAX_DEPTH = 8


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder, sorted by class and name."""

    path: str
    items: list[str]
    """The path of every image below the folder, with ``/`` between its parts."""
    labels: list[str] | None
    """The class of every image; None if no image is in a class folder."""
    skipped: list[tuple[str, str]]
    """Other files, with the reason."""

    def file(self, item: str) -> str:
        """The path of an image."""
        return os.path.join(self.path, *item.split("/"))

    def content_hashes(self) -> Iterator[str]:
        """Name and hash of the contents of every image."""
        for item in self.items:
            digest = hashlib.blake2b(digest_size=16)
            try:
                with _open_file(self.file(item)) as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError as problem:
                # A file that cannot be read has no row; the hash changes when it can be read.
                digest.update(str(problem).encode())
            yield f"{item}\0{digest.hexdigest()}"


def list_images(path: str) -> ImageFolder:
    """List the images below a folder. The class of an image is the folder that contains it."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no folder {path!r}")
    if not os.path.isdir(path):
        raise NotADirectoryError(f"{path!r} is a file; give a folder of class folders, or a loader")
    images: list[str] = []
    skipped: list[tuple[str, str]] = []
    for item in _files(path, "", (), skipped):
        if not _is_utf8(item):
            skipped.append((os.fsencode(item).decode(errors="backslashreplace"), "its name is not valid UTF-8: rename it"))
        elif item.rpartition(".")[2].lower() in _EXTENSIONS and "." in item.rpartition("/")[2]:
            images.append(item)
        else:
            skipped.append((item, "not an image by its file extension"))
    if not images:
        first = f"; the first file skipped: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise ValueError(f"no images in {path!r}{first}")
    classes = _classes(images)
    if not any(classes):
        return ImageFolder(path, images, None, skipped)
    skipped += [(item, "not in a class folder") for item, label in zip(images, classes) if not label]
    tops = sorted({label.split("/")[0] for label in classes if label})
    if all(top.lower() in _SPLITS for top in tops):
        raise ValueError(f"{path!r} contains {', '.join(tops)}, which are splits rather than classes: give one of them")
    pairs = sorted((label, item) for item, label in zip(images, classes) if label)
    return ImageFolder(path, [item for _, item in pairs], [label for label, _ in pairs], sorted(skipped))


def _files(folder: str, prefix: str, above: tuple[str, ...], skipped: list[tuple[str, str]]) -> Iterator[str]:
    """The paths of the files below a folder, relative to the first folder.

    ``prefix`` is the relative path of this folder, and ``above`` the real paths of the folders that contain it. Folders
    that cannot be listed are added to ``skipped``.
    """
    # A link to a parent folder would be an endless loop.
    true_path = os.path.realpath(folder)
    if true_path in above:
        return
    if len(above) >= _MAX_DEPTH:
        raise ValueError(f"folders in {folder!r} nest deeper than {_MAX_DEPTH}")
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as problem:
        if not prefix:
            raise
        reason = f"{problem.strerror} (os error {problem.errno})"
        skipped.append((prefix.rstrip("/"), f"a folder that cannot be read: {reason}"))
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _HIDDEN:
            continue
        # Unlike entry.is_dir, this is False for a link into a folder without permission.
        if os.path.isdir(entry.path):
            yield from _files(entry.path, f"{prefix}{entry.name}/", (*above, true_path), skipped)
        else:
            yield f"{prefix}{entry.name}"


def _is_utf8(name: str) -> bool:
    """Whether a file name is valid UTF-8; Python represents other bytes by lone surrogates, which cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _classes(items: list[str]) -> list[str]:
    """The class of each image: its folder, without the parent folders that all class folders share."""
    # "data/birds/owl/1.jpg" and "data/birds/wren/2.jpg" have the classes "owl" and "wren".
    folders = [item.split("/")[:-1] for item in items]
    shared = os.path.commonprefix([parts[:-1] for parts in folders])
    return ["/".join(parts[len(shared) :]) for parts in folders]


def read_image(path: str) -> Any:
    """Decode an image with Pillow: upright, transparent pixels on white, 8 bits per channel, RGB."""
    from PIL import Image

    with _open_file(path) as file, Image.open(file) as opened:
        return as_rgb(opened)


def _open_file(path: str) -> BinaryIO:
    """Open a file for reading. Pipes and devices are refused: opening a pipe would wait for its writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return open(path, "rb")


def as_rgb(image: Any) -> Any:
    """A copy of an image of Pillow: upright, transparent pixels on white, 8 bits per channel, RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # Modes such as I;16 have 16 bits per pixel, of which the upper 8 are kept.
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def unreadable_reason(path: str, problem: Exception) -> str:
    """Why an image cannot be decoded, as users read it. ``problem`` is the exception of Pillow."""
    from PIL import UnidentifiedImageError

    if isinstance(problem, UnidentifiedImageError):
        return "empty file" if os.path.getsize(path) == 0 else "unknown image format"
    if isinstance(problem, OSError) and problem.strerror:
        return f"cannot be read: {problem.strerror}"
    return str(problem) or type(problem).__name__
