"""Images: thumbnails for HTML reports, as data URIs (:func:`thumbnails`), and embeddings of the images in a data set by
the built-in network (:func:`embed_pictures`).

Pillow is used where it is installed. Without it, arrays and small image files still have thumbnails, because PNG files
are written here (:func:`_png`).
"""

from __future__ import annotations

import base64
import html
import io
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from ._image_folder import as_rgb

# The longer side of a thumbnail in pixels, as in the reports of the command line.
_SIDE = 112
# Files up to this size that browsers show are embedded in a page unchanged; others are reduced, or left out.
_MOST_BYTES = 64 * 1024

# The first bytes of image files that browsers show, and their media types.
_KINDS = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"RIFF", "image/webp"),
)


def thumbnails(pictures: Sequence[Any] | None) -> list[str | None]:
    """Data URIs of images; None for rows without an image."""
    return [] if pictures is None else [_data_uri(picture) for picture in pictures]


def _data_uri(picture: Any) -> str | None:
    """The thumbnail of a path, bytes of a file, an image of Pillow, or an array; None if it cannot be read or shown."""
    if picture is None:
        return None
    if isinstance(picture, (str, os.PathLike)):
        try:
            with open(picture, "rb") as file:
                return _encoded(file.read())
        except OSError:
            return None
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return _encoded(bytes(picture))
    # An image of Pillow can only be given if Pillow is imported. Mode F has floats, which are scaled like those of
    # arrays.
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(picture, pillow.Image) and picture.mode != "F":
        return _encoded(_thumbnail(picture))
    return _encoded(_png(_pixels(picture)))


def _encoded(data: bytes) -> str | None:
    """The bytes of an image file as a data URI, reduced if the file is large or of another kind than browsers show."""
    kind = next((kind for start, kind in _KINDS if data.startswith(start)), None)
    if kind is None or len(data) > _MOST_BYTES:
        smaller = _smaller(data)
        if smaller is None:
            return None
        data, kind = smaller, "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _smaller(data: bytes) -> bytes | None:
    """The image of a file as a small PNG, if Pillow is installed and can decode it."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(io.BytesIO(data)) as picture:
            # JPEG is decoded faster at a fraction of its size, here at least four times that of the thumbnail.
            picture.draft(None, (4 * _SIDE, 4 * _SIDE))
            return _thumbnail(picture)
    except Exception:  # decoders raise any type
        return None


def _thumbnail(picture: Any) -> bytes:
    """An image of Pillow, of any mode, as a small PNG."""
    small = as_rgb(picture)
    small.thumbnail((_SIDE, _SIDE))
    return _png(_pixels(small))


def _pixels(picture: Any) -> np.ndarray:
    """The pixels of an image as uint8 ``[height, width, channels]``, reduced to at most _SIDE by taking every n-th
    pixel.

    Floats up to 1 are scaled to 255.
    """
    pixels = np.asarray(picture)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(f"an image must be an array of shape (height, width[, 3 or 4]), got {pixels.shape}")
    # The longer side divided by _SIDE, rounded up.
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    pixels = pixels[::step, ::step]
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype.kind == "f":
        scale = 255.0 if pixels.size and float(np.nanmax(pixels)) <= 1.0 else 1.0
        pixels = np.nan_to_num(pixels) * scale
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    """A PNG file of uint8 pixels ``[height, width, channels]`` with 1 (grey), 3 (RGB) or 4 channels (RGBA)."""
    height, width, channels = pixels.shape
    # Every line begins with a byte 0: it is stored without a filter.
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    # Size, 8 bits per channel, the code of the colour type, and the only compression, filter and interlace methods.
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file: length, type, data and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# The first bytes of image files, and the extensions that ``trueshot embed`` expects.
_EXTENSIONS = {
    b"\x89PNG": "png", b"\xff\xd8": "jpg", b"GIF8": "gif", b"BM": "bmp", b"RIFF": "webp", b"II*\0": "tif", b"MM\0*": "tif",
}  # fmt: skip


def embed_pictures(pictures: Sequence[Any], what: str, threads: int | None = None) -> np.ndarray:
    """Embeddings of image files, given as bytes or paths, by the built-in network, ``[images, dimensions]``.

    Runs ``trueshot embed`` on copies of the files, named by their row, in a process of its own, so that its messages
    can be read. ``what`` is what errors call the images.
    """
    with tempfile.TemporaryDirectory(prefix="trueshot-") as folder:
        images = Path(folder, "images", "all")
        images.mkdir(parents=True)
        for row, picture in enumerate(pictures):
            data = _file_bytes(picture, row, what)
            extension = next((name for start, name in _EXTENSIONS.items() if data.startswith(start)), None)
            if extension is None:
                raise ValueError(f"{what} has a file in row {row} that is not BMP, GIF, JPEG, PNG, TIFF or WebP")
            Path(images, f"{row}.{extension}").write_bytes(data)
        arguments = ["embed", "images", "-o", "rows.safetensors", "--skipped", "skipped.txt"]
        arguments += [] if threads is None else ["--threads", str(threads)]
        # The folder of this package comes first, so that the process imports it even if it is not installed.
        search_path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": search_path}
        command = [sys.executable, "-m", "trueshot", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        skipped = Path(folder, "skipped.txt")
        if skipped.exists() and skipped.read_text().strip():
            raise ValueError(f"{what} has images that cannot be read, named by their rows:\n{skipped.read_text().strip()}")
        if done.returncode != 0:
            raise ValueError(f"{what} cannot be embedded: {done.stderr.strip()}")
        features, _, _, names, _ = _native.read_embeddings(str(Path(folder, "rows.safetensors")))
    # The command sorts files by name, "10" before "2".
    order = np.argsort([int(Path(name).stem) for name in names or []])
    return features[order]


def _file_bytes(picture: Any, row: int, what: str) -> bytes:
    """The contents of an image file, given as bytes or as a path."""
    if picture is None:
        raise ValueError(f"{what} has no image in row {row}: remove such rows first")
    return bytes(picture) if isinstance(picture, (bytes, bytearray, memoryview)) else Path(picture).read_bytes()


def framed(page: str) -> str:
    """A page inside an iframe, isolated from the styles of the notebook."""
    document = html.escape(page, quote=True)
    return f'<iframe srcdoc="{document}" sandbox="allow-scripts" style="width:100%;height:640px;border:0"></iframe>'
