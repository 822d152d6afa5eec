#!/usr/bin/env python3
"""Train the Conv4 of the paper in PyTorch by the same recipe as `trueshot train backbone`, and print the learning curve.

    python bench/peers/torch_backbone.py mini/train --val mini/val --steps 10000 --seeds 1,2,3
    trueshot train backbone mini/train --val mini/val --steps 10000 --val-every 1000 --seed 1 -o conv4.safetensors

The recipe:
  - One clean 5-way 5-shot episode with 15 queries per class per step, with batch norm over its 100 images.
  - The loss is the cross-entropy over the negative squared distances to the class means.
  - AdamW with rate 1e-3 and weight decay 0.01; the rate is multiplied by 0.7 after every tenth of the run.
  - Images are flipped, cropped (scale 0.8 to 1, ratio 3/4 to 4/3) and changed in brightness, contrast, saturation and hue by
    up to 0.1, each independently.

Both folders consist of class folders. Prints one JSON line per validation (600 episodes, batch norm with running
statistics): seed, step, accuracy in percent. Needs torch, numpy and pillow; uses a GPU if there is one.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

if "--help" not in sys.argv and "-h" not in sys.argv:
    # --help works without packages.
    benchlib.require("torch", "numpy", "PIL")
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

# Classes per episode, support images and queries per class.
WAYS, SHOTS, QUERIES = 5, 5, 15
# Mean and standard deviation of the pixels of ImageNet, RGB from 0 to 1.
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def conv4() -> nn.Sequential:
    """Four blocks of convolution, batch norm, ReLU and pooling, initialised as in the paper's program."""
    layers: list[nn.Module] = []
    for block in range(4):
        convolution = nn.Conv2d(64 if block else 3, 64, 3, padding=1)
        nn.init.xavier_uniform_(convolution.weight)
        nn.init.zeros_(convolution.bias)
        norm = nn.BatchNorm2d(64)
        nn.init.uniform_(norm.weight)
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def load(folder: Path, size: int, device: str) -> list[Tensor]:
    """The images of each class, `[images, 3, size, size]`, as uint8."""
    import numpy as np
    from PIL import Image

    def pixels(path: Path) -> Tensor:
        """An image, `[3, size, size]`."""
        image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)

    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [torch.stack([pixels(path) for path in sorted(label.iterdir())]).to(device) for label in classes]


def uniform(generator: torch.Generator, count: int, low: float, high: float) -> Tensor:
    """Uniform numbers between `low` and `high`, `[count]`."""
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Augments images `[images, 3, size, size]` with values from 0 to 1, each independently."""
    # A crop as an affine map of coordinates from -1 to 1: its size, its centre (x, y), and a negative width if it is flipped.
    # Logarithms of ratios from 3/4 to 4/3 are at most ln(4/3) = 0.28768.
    count = len(images)
    area, log_ratio = uniform(generator, count, 0.8, 1.0), uniform(generator, count, -0.28768, 0.28768)
    width, height = (area * log_ratio.exp()).sqrt().clamp(max=1), (area / log_ratio.exp()).sqrt().clamp(max=1)
    x, y = (1 - width) * uniform(generator, count, -1, 1), (1 - height) * uniform(generator, count, -1, 1)
    flip = torch.where(uniform(generator, count, 0, 1) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(x)
    theta = torch.stack([torch.stack([width * flip, zero, x], 1), torch.stack([zero, height, y], 1)], 1)
    grid = F.affine_grid(theta, images.shape, align_corners=False)
    images = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    # Brightness, contrast (from the mean grey value) and saturation (from the grey image), by one factor each.
    factor = [uniform(generator, count, 0.9, 1.1).view(-1, 1, 1, 1) for _ in range(3)]
    grey_weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    images = (images * factor[0]).clamp(0, 1)
    mean = (images * grey_weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    images = (mean + (images - mean) * factor[1]).clamp(0, 1)
    grey = (images * grey_weights).sum(1, keepdim=True)
    images = (grey + (images - grey) * factor[2]).clamp(0, 1)
    return shift_hue(images, uniform(generator, count, -0.1, 0.1).view(-1, 1, 1))


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shifts the hue of each image by `shift` `[images, 1, 1]`, a share of the colour circle."""
    # To hue, saturation and value and back. `high` and `low`, from which value and saturation follow, do not change.
    red, green, blue = images.unbind(1)
    high, low = images.amax(1), images.amin(1)
    span = (high - low).clamp(min=1e-8)
    hue = torch.where(
        high == red, (green - blue) / span, torch.where(high == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    )
    hue = (hue / 6 + shift) % 1
    # Each channel is `high`, `low` or on a ramp between them, depending on its position `k` on the circle relative to the hue.
    sector = torch.arange(5, 0, -2, device=images.device).view(1, 3, 1, 1)  # 5, 3, 1: red, green, blue
    k = (sector + hue.unsqueeze(1) * 6) % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return high.unsqueeze(1) - (high - low).unsqueeze(1) * ramp


def normalise(images: Tensor) -> Tensor:
    """Images with values from 0 to 1 as inputs of the network: minus MEAN, divided by SPREAD."""
    mean, spread = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, SPREAD))
    return (images - mean) / spread


def draw(classes: list[Tensor], generator: torch.Generator) -> Tensor:
    """The images of an episode, `[WAYS, SHOTS + QUERIES, 3, size, size]`, with values from 0 to 1."""
    chosen = torch.randperm(len(classes), generator=generator)[:WAYS]
    rows = []
    for number in chosen.tolist():
        images = classes[number]
        rows.append(images[torch.randperm(len(images), generator=generator)[: SHOTS + QUERIES].to(images.device)])
    return torch.stack(rows).float() / 255


def logits(features: Tensor) -> tuple[Tensor, Tensor]:
    """Negative squared distances of the queries to the class means, `[queries, WAYS]`, and the class of each query."""
    features = features.view(WAYS, SHOTS + QUERIES, -1)
    prototypes, queries = features[:, :SHOTS].mean(1), features[:, SHOTS:].flatten(0, 1)
    target = torch.arange(WAYS, device=features.device).repeat_interleave(QUERIES)
    return -(queries.unsqueeze(1) - prototypes).square().sum(-1), target


def validate(network: nn.Module, classes: list[Tensor], episodes: int) -> float:
    """The accuracy in percent over `episodes` episodes, which are the same at every call."""
    network.eval()
    generator = torch.Generator().manual_seed(0)
    right = 0.0
    with torch.no_grad():
        for _ in range(episodes):
            scores, target = logits(network(normalise(draw(classes, generator).flatten(0, 1))))
            right += (scores.argmax(1) == target).float().mean().item()
    network.train()
    return 100 * right / episodes


def save(network: nn.Sequential, size: int, path: Path) -> None:
    """Writes the network as a safetensors file that `trueshot embed --backbone` reads."""
    tensors = {}
    for block in range(4):
        convolution, norm = network[4 * block], network[4 * block + 1]
        tensors |= {f"block{block + 1}.conv.{name}": tensor for name, tensor in convolution.state_dict().items()}
        statistics = norm.state_dict()
        del statistics["num_batches_tracked"]
        tensors |= {f"block{block + 1}.norm.{name}": tensor for name, tensor in statistics.items()}
    numbers = {"mean": ",".join(map(str, MEAN)), "std": ",".join(map(str, SPREAD)), "input_size": str(size)}
    header: dict[str, object] = {"__metadata__": {"architecture": "conv4", **numbers}}
    offset, data = 0, []
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().float().cpu().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(values)]}
        offset += len(values)
        data.append(values)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def train(arguments: argparse.Namespace, classes: list[Tensor], held_out: list[Tensor], seed: int) -> None:
    """Trains a network on `classes` and validates it on `held_out`; prints one line per validation."""
    torch.manual_seed(seed)
    device = classes[0].device
    network = conv4().to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, max(arguments.steps // 10, 1), 0.7)
    # Random numbers for drawing episodes (on the CPU) and for augmenting images (on the device of the images).
    drawing, augmenting = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed)
    for step in range(1, arguments.steps + 1):
        images = draw(classes, drawing).flatten(0, 1)
        scores, target = logits(network(normalise(augment(images, augmenting))))
        loss = F.cross_entropy(scores, target)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % arguments.val_every == 0:
            accuracy = validate(network, held_out, arguments.val_episodes)
            print(json.dumps({"seed": seed, "step": step, "accuracy": round(accuracy, 3)}), flush=True)
    if arguments.out:
        save(network, arguments.size, arguments.out / f"torch-conv4-{seed}.safetensors")


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("train", type=benchlib.existing_folder, metavar="FOLDER", help="folder of class folders to train on")
    parser.add_argument("--val", type=benchlib.existing_folder, required=True, metavar="FOLDER",
                        help="folder of class folders to validate on")
    parser.add_argument("--steps", type=benchlib.positive, default=10_000, metavar="N",
                        help="training steps, one episode each [default: %(default)s]")
    parser.add_argument("--val-every", type=benchlib.positive, default=1000, metavar="N",
                        help="steps between validations [default: %(default)s]")
    parser.add_argument("--val-episodes", type=benchlib.positive, default=600, metavar="N",
                        help="episodes per validation [default: %(default)s]")
    parser.add_argument("--size", type=benchlib.positive, default=84, metavar="PX",
                        help="height and width of the images [default: %(default)s]")
    parser.add_argument("--seeds", default="1", metavar="N,..",
                        help="random seeds, one run each, separated by commas [default: %(default)s]")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="write the networks to FOLDER, to be evaluated with `trueshot embed` and `trueshot eval`")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes, held_out = (load(folder, arguments.size, device) for folder in (arguments.train, arguments.val))
    for seed in map(int, arguments.seeds.split(",")):
        train(arguments, classes, held_out, seed)


if __name__ == "__main__":
    main()
