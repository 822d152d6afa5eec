"""Thumbnails for HTML reports, as data URIs."""

from __future__ import annotations

import base64
import html
import io
import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_SIDE = 112
# A file up to this size is put into a page as it is; a larger one is made smaller, or left out.
_MOST_BYTES = 64 * 1024

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
    return _encoded(_png(_pixels(picture)))


def _encoded(data: bytes) -> str | None:
    if len(data) > _MOST_BYTES:
        smaller = _smaller(data)
        if smaller is None:
            return None
        data = smaller
    kind = next((kind for start, kind in _KINDS if data.startswith(start)), None)
    return None if kind is None else f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _smaller(data: bytes) -> bytes | None:
    """The image as a small PNG, if Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.thumbnail((2 * _SIDE, 2 * _SIDE))
            return _png(_pixels(picture.convert("RGB")))
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def _pixels(picture: Any) -> np.ndarray:
    """Rows of bytes, no larger than a page shows them."""
    pixels = np.asarray(picture)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(f"an image must be an array of shape (height, width[, 3 or 4]), got {pixels.shape}")
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    pixels = pixels[::step, ::step]
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype.kind == "f":
        scale = 255.0 if pixels.size and float(np.nanmax(pixels)) <= 1.0 else 1.0
        pixels = np.nan_to_num(pixels) * scale
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def framed(page: str) -> str:
    """A page inside an iframe, isolated from the styles of the notebook."""
    inside = html.escape(page, quote=True)
    return f'<iframe srcdoc="{inside}" sandbox="allow-scripts" style="width:100%;height:640px;border:0"></iframe>'
