#!/usr/bin/env python3
"""Writes pictures and their embeddings by onnxruntime: write_features.py efficientnet-lite0.onnx FOLDER

The pictures are synthetic (waves and discs), so they can be distributed. They are prepared as the network was trained:
squashed to 224 px by Pillow's bicubic filter, (x - 127) / 128. Every eighth number of an embedding is kept. Needs
numpy, onnxruntime and pillow; crates/vision/tests/embedder.rs reads what this wrote.
"""
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image


def picture(number: int, width: int, height: int) -> Image.Image:
    """A picture of random waves with a disc, different in every channel."""
    random = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    planes = []
    for _ in range(3):
        waves = sum(np.sin(random.uniform(-40, 40) * x + random.uniform(-40, 40) * y + random.uniform(0, 6)) for _ in range(4))
        centre, radius = random.uniform(0, 1, 2), random.uniform(0.1, 0.4)
        disc = 3 * ((x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2)
        planes.append(127 + 28 * (waves + disc))
    return Image.fromarray(np.clip(np.stack(planes, 2), 0, 255).astype(np.uint8))


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    features = {}
    for number, (width, height) in enumerate([(120, 80), (64, 96), (224, 224)]):
        image = picture(number, width, height)
        name = f"{number}.png"
        image.save(folder / name, optimize=True)
        values = np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC), np.float32)
        batch = ((values - 127) / 128).transpose(2, 0, 1)[None]
        row = session.run(["embedding"], {"input": batch})[0][0]
        features[name] = [round(float(value), 5) for value in row[::8]]
    (folder / "features.json").write_text(json.dumps(features) + "\n")


if __name__ == "__main__":
    main()
