#!/usr/bin/env python3
"""Compare the errors of trueshot's training steps on a GPU with those of PyTorch in TF32, both against float64.

    cargo run --release -p trueshot-cuda --example accuracy -- FOLDER
    python bench/peers/torch_accuracy.py FOLDER

FOLDER holds five folders, each with inputs and parameters of one training step of every model, and the features and
gradients that trueshot computed:

  conv4     5 classes, 5 shots, 15 queries, 84 px
  tranfs    16 episodes, 1,600 features, no dropout
  relabel   32 episodes, 640 features

PyTorch computes the features and gradients twice: in float64, which is the reference, and in float32 with TF32 allowed for
matrix products and convolutions. An error is the norm of the difference from the reference, divided by the norm of the
reference; the root mean square over the five steps is reported.

Some operations are float32 in the TF32 run, too, as in trueshot: squared differences of features, the prototypes of
Conv4, and the inner products of features that Relabel's network gets. Relabel's prototypes and their distances are not:
PyTorch computes them with matrix products in TF32, trueshot in float32.

Prints one line per tensor: trueshot's error, that of TF32, and the quotient. The exit status is 1 if a quotient is above
--limit. On a CPU (--device cpu), TF32 is emulated: inputs of products are rounded to 11 bits, in the backward pass too.

Errors of a few per cent in the gradients of convolutions are due to max pooling: rounding decides which of two almost
equal values is taken. A single such decision can dominate the error of a small tensor, so quotients vary.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Classes per episode, support items and queries per class.
WAYS, SHOTS, QUERIES = 5, 5, 15
MODELS = ("conv4", "tranfs", "relabel")
# TraNFS: attention heads, layers, and the weight of the loss of "mislabelled".
HEADS, LAYERS, MISLABELLED_WEIGHT = 8, 3, 0.5


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("folder", type=benchlib.existing_folder, metavar="FOLDER",
                        help="what trueshot's example `accuracy` wrote")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="where PyTorch computes; on the CPU, TF32 is emulated [default: %(default)s]")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,..",
                        help="models to compare [default: %(default)s]")
    parser.add_argument("--limit", type=float, default=2.0, metavar="X",
                        help="largest quotient of trueshot's error and that of TF32 [default: %(default)s]")
    return parser.parse_args()


def read_arrays(folder: Path, name: str) -> dict:
    """All arrays of one step, as float32 tensors, by keys such as `images`, `parameter NAME` and `gradient NAME`."""
    import torch

    index, data = folder / f"{name}.json", folder / f"{name}.bin"
    if not index.is_file() or not data.is_file():
        benchlib.fail(f"{index} or {data} is missing: run trueshot's example `accuracy` first")
    values = torch.frombuffer(bytearray(data.read_bytes()), dtype=torch.float32)
    arrays = {}
    for key, entry in json.loads(index.read_text()).items():
        start, shape = entry["start"], entry["shape"]
        arrays[key] = values[start:start + math.prod(shape)].view(shape)
    return arrays


@contextlib.contextmanager
def tf32(allowed: bool):
    """A context in which TF32 is allowed or forbidden in matrix products and convolutions."""
    import torch

    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = allowed
    try:
        yield
    finally:
        for backend, value in zip(backends, before):
            backend.allow_tf32 = value


def emulated_tf32():
    """A context in which inputs of float32 matrix products and convolutions are rounded to 11 bits, as by TF32."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    def rounded(value: Tensor) -> Tensor:
        """The value in the precision of TF32."""
        # A float32 has 24 bits of precision, TF32 has 11: the lower 13 bits become 0, after adding half of their range.
        return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1fff).view(torch.float32)

    def reduced(gradient: Tensor, like: Tensor) -> Tensor:
        """The gradient of a factor that was broadcast, summed to its shape."""
        return gradient.sum_to_size(like.shape)

    class Product(torch.autograd.Function):
        """A matrix product, or of a matrix with a vector, of rounded factors."""

        @staticmethod
        def forward(context, a: Tensor, b: Tensor) -> Tensor:
            a, b = rounded(a), rounded(b)
            context.save_for_backward(a, b)
            return a @ b

        @staticmethod
        def backward(context, d: Tensor) -> tuple[Tensor, Tensor]:
            (a, b), d = context.saved_tensors, rounded(d)
            if b.dim() == 1:
                return reduced(d.unsqueeze(-1) * b, a), reduced((a * d.unsqueeze(-1)).flatten(0, -2).sum(0), b)
            return reduced(d @ b.mT, a), reduced(a.mT @ d, b)

    class Convolution(torch.autograd.Function):
        """A 3x3 convolution of rounded inputs, padded by 1."""

        @staticmethod
        def forward(context, x: Tensor, weight: Tensor) -> Tensor:
            x, weight = rounded(x), rounded(weight)
            context.save_for_backward(x, weight)
            return F.conv2d(x, weight, padding=1)

        @staticmethod
        def backward(context, d: Tensor) -> tuple[Tensor, Tensor]:
            (x, weight), d = context.saved_tensors, rounded(d)
            return (torch.nn.grad.conv2d_input(x.shape, weight, d, padding=1),
                    torch.nn.grad.conv2d_weight(x, weight.shape, d, padding=1))

    class Mode(TorchFunctionMode):
        """Replaces the products and convolutions that PyTorch calls, where TF32 is allowed."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if not torch.backends.cuda.matmul.allow_tf32:
                return function(*args, **kwargs)
            if function in (Tensor.__matmul__, Tensor.matmul, torch.matmul):
                return Product.apply(*args)
            if function is F.linear:
                x, weight, bias = (*args, None)[:3] if len(args) < 3 else args
                return Product.apply(x, weight.T) + (0 if bias is None else bias)
            if function is F.conv2d:
                return Convolution.apply(*args[:2]) + args[2].view(-1, 1, 1)
            return function(*args, **kwargs)

    return Mode()


def of_kind(arrays: dict, kind: str) -> dict:
    """The arrays of one kind, such as `gradient`, by the NAME in their keys (see `read_arrays`)."""
    return {key.split(" ", 1)[1]: value for key, value in arrays.items() if key.startswith(f"{kind} ")}


def classes_of(each: int, device):
    """The classes of WAYS x `each` items that are sorted by class."""
    import torch

    return torch.arange(WAYS, device=device).repeat_interleave(each)


def distances(queries, prototypes):
    """Squared distances `[.., queries, classes]`, without a matrix product, which would lose digits by cancellation."""
    return (queries.unsqueeze(-2) - prototypes.unsqueeze(-3)).square().sum(-1)


def conv4(inputs: dict, weights: dict):
    """A step of Conv4: the loss of nearest prototypes, and the features.

    This and the two functions below take the inputs and parameters of `read_arrays` by name, and return the loss and
    other tensors to compare.
    """
    import torch.nn.functional as F

    batch, support = inputs["images"].permute(0, 3, 1, 2), int(inputs["support"].item())
    for block in range(1, 5):
        own = {part: weights[f"block{block}.{part}"] for part in ("conv.weight", "conv.bias", "norm.weight", "norm.bias")}
        batch = F.conv2d(batch, own["conv.weight"], own["conv.bias"], padding=1)
        batch = F.batch_norm(batch, None, None, own["norm.weight"], own["norm.bias"], training=True)
        batch = F.max_pool2d(F.relu(batch), 2)
    features, labels = batch.flatten(1), inputs["labels"].long()
    given = F.one_hot(labels[:support], WAYS).to(features.dtype)
    with tf32(False):
        prototypes = (given / given.sum(0)).T @ features[:support]
    return F.cross_entropy(-distances(features[support:], prototypes), labels[support:]), {"features": features}


def encoder_layer(states, weights: dict, layer: int):
    """A layer of TraNFS: attention and feed-forward network, each followed by a layer norm."""
    import torch.nn.functional as F

    def linear(x, name: str):
        """The linear layer of this name."""
        return x @ weights[f"layer{layer}.{name}.weight"] + weights[f"layer{layer}.{name}.bias"]

    def norm(x, name: str):
        """The layer norm of this name."""
        scale, shift = weights[f"layer{layer}.{name}.scale"], weights[f"layer{layer}.{name}.shift"]
        return F.layer_norm(x, x.shape[-1:], scale, shift)

    batch, tokens, width = states.shape
    parts = linear(states, "attention.in").view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    queries, keys, values = parts
    attention = (queries @ keys.mT / math.sqrt(width // HEADS)).softmax(-1)
    attended = (attention @ values).transpose(1, 2).flatten(-2)
    states = norm(states + linear(attended, "attention.out"), "norm1")
    hidden = F.relu(linear(states, "feed_forward.in"))
    return norm(states + linear(hidden, "feed_forward.out"), "norm2")


def tranfs(inputs: dict, weights: dict):
    """A step of TraNFS: the sum of the losses of all episodes."""
    import torch
    import torch.nn.functional as F

    support, queries = inputs["rows"].split([WAYS * SHOTS, WAYS * QUERIES], dim=1)
    wrong, device = inputs["mislabelled"], support.device
    down, positions = weights["down.weight"], weights["positions"]
    class_tokens = (weights["class_tokens"] + positions).expand(len(support), -1, -1)
    states = torch.cat([class_tokens, support @ down + positions[classes_of(SHOTS, device)]], dim=1)
    for layer in range(LAYERS):
        states = encoder_layer(states, weights, layer)
    prototypes = states[:, :WAYS] @ down.T
    logits = states[:, WAYS:] @ (down.T @ weights["mislabelled.weight"]) + weights["mislabelled.bias"]
    answers = classes_of(QUERIES, device).expand(len(support), -1)
    queries_loss = F.cross_entropy(-distances(queries, prototypes).flatten(0, 1), answers.flatten())
    clean = (1 - wrong).unflatten(1, (WAYS, SHOTS)).unsqueeze(-1)
    means = (clean * support.unflatten(1, (WAYS, SHOTS))).sum(2) / clean.sum(2)
    clean_loss = (prototypes - means).square().sum(-1).mean()
    mislabelled_loss = F.binary_cross_entropy_with_logits(logits, wrong)
    return len(support) * (queries_loss + clean_loss + MISLABELLED_WEIGHT * mislabelled_loss), {}


def relabel(inputs: dict, weights: dict):
    """A step of Relabel: the sum of both losses, each a mean over the episodes."""
    import torch
    import torch.nn.functional as F

    import torch_relabel

    support, queries = inputs["rows"].split([WAYS * SHOTS, WAYS * QUERIES], dim=1)
    count, device = len(support), support.device
    network = torch_relabel.network_class()().to(device, support.dtype)
    # The parameters by their names in the network of torch_relabel.py.
    parameters = {}
    for name, value in weights.items():
        own_name, transposed = torch_relabel.own_name(name)
        shape = network.get_parameter(own_name).shape
        parameters[own_name] = (value.T if transposed else value).reshape(shape)
    given = F.one_hot(classes_of(SHOTS, device), WAYS).to(support.dtype).expand(count, -1, -1)
    answers = classes_of(QUERIES, device).expand(count, -1)
    with tf32(False):
        products = (support @ support.mT, support @ queries.mT)

    class Losses(torch.nn.Module):
        """A module whose output is the losses, so that `functional_call` can compute them with given parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self):
            return self.network.losses(support, queries, given, inputs["truth"].long(), answers, products=products)

    losses = torch.func.functional_call(Losses(), {f"network.{name}": value for name, value in parameters.items()}, ())
    return sum(losses), {}


def results(model, arrays: dict, device: str, dtype, allow_tf32: bool) -> dict:
    """Features and gradients by name, computed in one precision and returned as float64 on the CPU."""
    import torch

    torch.set_default_dtype(dtype)
    kinds = ("parameter", "gradient")
    inputs = {key: value.to(device, dtype) for key, value in arrays.items() if key.split(" ")[0] not in kinds}
    weights = {name: value.to(device, dtype) for name, value in of_kind(arrays, "parameter").items()}
    trained = of_kind(arrays, "gradient")
    for name in trained:
        weights[name].requires_grad_()
    emulated = emulated_tf32() if allow_tf32 and device == "cpu" else contextlib.nullcontext()
    with tf32(allow_tf32), emulated:
        loss, compared = model(inputs, weights)
        loss.backward()
    torch.set_default_dtype(torch.float32)
    compared |= {name: weights[name].grad for name in trained}
    return {name: value.detach().double().cpu() for name, value in compared.items()}


def errors(name: str, folder: Path, device: str) -> dict[str, tuple[float, float]]:
    """The errors of trueshot and of TF32 in one step, by tensor."""
    import torch

    arrays = read_arrays(folder, name)
    model = {"conv4": conv4, "tranfs": tranfs, "relabel": relabel}[name]
    reference = results(model, arrays, device, torch.float64, allow_tf32=False)
    peer = results(model, arrays, device, torch.float32, allow_tf32=True)
    ours = of_kind(arrays, "gradient") | ({"features": arrays["features"]} if "features" in reference else {})

    def error(tensors: dict, key: str) -> float:
        """The relative error of one tensor."""
        return ((tensors[key].double().cpu() - reference[key]).norm() / reference[key].norm()).item()

    # A bias before batch norm has no effect: its gradient is rounding error.
    names = [key for key in reference if not key.endswith("conv.bias")]
    return {key: (error(ours, key), error(peer, key)) for key in names}


def compare(name: str, folders: list[Path], arguments: argparse.Namespace) -> bool:
    """Prints the errors of one model; returns whether all quotients are within --limit."""
    steps = [errors(name, folder, arguments.device) for folder in folders]
    good = True
    print(f"{name:32} {'trueshot':>10} {'TF32':>10} {'quotient':>9}")
    for key in steps[0]:
        # The root mean squares of both errors over the steps.
        ours, theirs = (math.sqrt(sum(step[key][i] ** 2 for step in steps) / len(steps)) for i in range(2))
        quotient = ours / max(theirs, 1e-12)
        fine = quotient <= arguments.limit
        good &= fine
        print(f"  {key:30} {ours:10.2e} {theirs:10.2e} {quotient:9.2f}{'' if fine else '  too large'}")
    return good


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch")
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        benchlib.fail("PyTorch finds no NVIDIA GPU on this machine; --device cpu emulates TF32")
    names = [name for name in arguments.models.split(",") if name]
    if unknown := [name for name in names if name not in MODELS]:
        benchlib.fail(f"--models: there is no model '{unknown[0]}'; known: {', '.join(MODELS)}")
    folders = sorted(path for path in arguments.folder.glob("*") if path.is_dir())
    if not folders:
        benchlib.fail(f"{arguments.folder}: no folders of steps; the example accuracy of trueshot-cuda writes them")
    sys.exit(0 if all([compare(name, folders, arguments) for name in names]) else 1)


if __name__ == "__main__":
    main()
