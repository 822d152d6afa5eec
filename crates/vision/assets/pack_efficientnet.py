#!/usr/bin/env python3
"""Packs EfficientNet-Lite0 for trueshot: pack_efficientnet.py efficientnet-lite0.onnx efficientnet-lite0.safetensors

Takes the ONNX file of the network (docs/built-in.md says where it is from) with batch norm folded into its convolutions, leaves out the layer of 1,000 classes,
gives the tensors the names that trueshot-nn has for them, and adds notes on how images must be preprocessed. The
matrices of the pointwise convolutions, 94 % of all numbers, are stored in f16, the rest in f32: rounding the depthwise
filters too would save 0.4 MB and make the error of the features ten times as large. Needs onnx and numpy. The
output is reproducible: the same ONNX file always gives the same bytes.
"""
from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

# The metadata of the file. A pixel x (0 to 255) is normalised to (x - 127) / 128; trueshot divides pixels by 255 first,
# so mean and std are divided too.
NOTES = {
    "architecture": "efficientnet-lite0",
    "input_size": "224",
    "mean": ",".join([repr(127 / 255)] * 3),
    "std": ",".join([repr(128 / 255)] * 3),
    "resampling": "bicubic",
    "licence": "Apache-2.0, Copyright (c) 2020, ML Illustrated",
}


def renamed(name: str) -> str:
    """Maps a name such as `_blocks.3._expand_conv.w` to `block4.expand.weight`, and `_conv_stem.w` to `stem.weight`."""
    *place, kind = name.split(".")
    suffix = {"w": "weight", "b": "bias"}[kind]
    layer = place[-1].removeprefix("_").removesuffix("_conv").removeprefix("conv_")
    block = f"block{int(place[1]) + 1}." if place[0] == "_blocks" else ""
    return f"{block}{layer}.{suffix}"


def tensors_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Maps the new names of the tensors to their values, with pointwise kernels as matrices."""
    tensors = {}
    for tensor in model.graph.initializer:
        if not tensor.name.startswith(("_conv_", "_blocks.")):
            continue  # the classification layer, and the bounds of ReLU6
        values = numpy_helper.to_array(tensor)
        # Drop dimensions of 1: pointwise [O, I, 1, 1] becomes [O, I], depthwise [C, 1, k, k] becomes [C, k, k]. Only
        # the stem is a full convolution.
        if values.ndim == 4 and "_stem" not in tensor.name:
            values = values.reshape(values.shape[0], *[length for length in values.shape[1:] if length != 1])
        tensors[renamed(tensor.name)] = values
    return tensors


def stored(values: np.ndarray) -> np.ndarray:
    """The values in the number format of the file: matrices in f16, everything else in f32."""
    return values.astype("<f2" if values.ndim == 2 else "<f4")


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file: the length of the header, the header as JSON padded to 8 bytes, and the tensors."""
    header: dict[str, object] = {"__metadata__": dict(sorted(NOTES.items()))}
    end = 0
    # f32 tensors come first, so that all are aligned.
    ordered = sorted(tensors.items(), key=lambda item: (item[1].ndim == 2, item[0]))
    for name, values in ordered:
        begin, end = end, end + stored(values).nbytes
        header[name] = {"dtype": f"F{8 * stored(values).itemsize}", "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in ordered:
            out.write(stored(values).tobytes())


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tensors = tensors_of(onnx.load(sys.argv[1]))
    write(Path(sys.argv[2]), tensors)
    count = sum(values.size for values in tensors.values())
    print(f"{sys.argv[2]}: {len(tensors)} tensors, {count} parameters", file=sys.stderr)


if __name__ == "__main__":
    main()
