#!/usr/bin/env python3
"""Time a training step of the head Relabel in PyTorch: 32 episodes of 5 classes with 5 items and 15 queries each.

    python bench/peers/torch_relabel.py
    python bench/peers/torch_relabel.py --modes graph --precisions bf16
    cargo run --release -p trueshot-cuda --example relabel -- --figures FILE
    python bench/peers/torch_relabel.py --check FILE

The network is that of trueshot with default options, in batched PyTorch. A step gathers 3,200 rows from the features on the
GPU, as in training, and then computes inner products, features of pairs and states, the edge network, the layers of attention
and mixing, the posterior, both losses and the backward pass, and updates the parameters with fused AdamW.

Modes: `eager`; `compile` (torch.compile); `graph` (torch.compile, and the whole step as one CUDA graph). Precisions: TF32, or
bf16 autocast for the network (inner products and losses stay f32, multiplied in TF32). Prints one JSON line per mode and
precision:

  name, stack     the workload; the version of torch, the precision and the mode
  ms, min_ms      median and minimum of the milliseconds of a step that is waited for
  pipelined_ms    mean of 100 steps that are started one after the other without waiting

--check compares losses and gradients with those that trueshot wrote to FILE, on a CPU. Timing needs torch with CUDA and an
NVIDIA GPU.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Options of the network, at trueshot's defaults: width of a state, layers, attention heads, hidden units of a mixing
# layer and of the edge network, and the weight that an item always has in its given class.
WIDTH, LAYERS, HEADS, HIDDEN, EDGE_HIDDEN, FLOOR = 64, 4, 4, 128, 64, 0.01
# The workload: episodes per step, classes, items and queries per class, and rows of the table of features.
EPISODES, WAYS, SHOTS, QUERIES, ROWS = 32, 5, 5, 15, 20_000
MODES, PRECISIONS = ("eager", "compile", "graph"), ("tf32", "bf16")
# Steps before a graph is captured, and consecutive steps that are timed together.
WARM_UPS, PIPELINED = 8, 100


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    add_timing_arguments(parser)
    parser.add_argument("--dim", type=benchlib.positive, default=640, metavar="N",
                        help="length of a feature vector [default: %(default)s]")
    parser.add_argument("--check", type=Path, metavar="FILE",
                        help="compare with the figures that trueshot wrote to FILE instead of timing")
    return parser.parse_args()


def network_class():
    """The class of the network, defined in a function so that --help works without PyTorch.

    Relabel estimates the true class of every support item. From that follow the weights of the items in one prototype per
    class, and queries are classified by their distances to the prototypes. The network has one state of length W per item and
    class; attention mixes the states of items, and a mixing layer those of classes. Shapes: B episodes, M items, C classes,
    H heads. crates/nn/src/relabel has the same network.
    """
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    def centred(gram: Tensor, rounding: float = 1e-6) -> Tensor:
        """Cosines of the items centred at their mean, `[B, M, M]`, from their inner products of the same shape.

        An item that equals the mean up to `rounding` has the cosine 0 with all others.
        """
        with_mean = gram.mean(-1)
        mean_square = with_mean.mean(-1, keepdim=True)
        square = gram.diagonal(dim1=-2, dim2=-1)
        lengths = square - 2 * with_mean + mean_square
        scale = torch.where(lengths > rounding * (square + mean_square), lengths.clamp(min=1e-30).rsqrt(), 0.0)
        products = gram - with_mean.unsqueeze(-1) - with_mean.unsqueeze(-2) + mean_square.unsqueeze(-1)
        return products * scale.unsqueeze(-1) * scale.unsqueeze(-2)

    def edge_features(gram: Tensor) -> Tensor:
        """Five relations of each pair of items i and j, `[B, M, M, 5]`: the centred cosine, the squared distance
        relative to the mean, the rank of j among the neighbours of i and that of i among those of j, and the
        standardised cosine."""
        items = gram.shape[-1]
        eye = torch.eye(items, dtype=torch.bool, device=gram.device)
        apart = items * (items - 1)
        square = gram.diagonal(dim1=-2, dim2=-1)
        distances = (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * gram).clamp(min=0).masked_fill(eye, 0.0)
        cosine = centred(gram).clamp(-1, 1).masked_fill(eye, 1.0)
        # Rank of j among the items other than i by distance; equal distances share their mean rank. `tied` includes j
        # itself, so ranks begin at 1/2.
        others = distances.masked_fill(eye, math.inf)
        nearer = (others.unsqueeze(-2) < distances.unsqueeze(-1)).sum(-1)
        tied = (others.unsqueeze(-2) == distances.unsqueeze(-1)).sum(-1)
        rank = ((nearer + 0.5 * tied) / (items - 1)).masked_fill(eye, 0.0)
        mean = distances.sum((-2, -1), keepdim=True) / apart
        relative = (distances / mean - 1).clamp(-8, 8).masked_fill(eye, -1.0)
        unit = square.clamp(min=1e-30).rsqrt()
        raw = (gram * unit.unsqueeze(-1) * unit.unsqueeze(-2)).clamp(-1, 1).masked_fill(eye, 1.0)
        off = raw.masked_fill(eye, 0.0)
        raw_mean = off.sum((-2, -1), keepdim=True) / apart
        variance = (off - raw_mean).masked_fill(eye, 0.0).square().sum((-2, -1), keepdim=True) / apart
        raw = ((raw - raw_mean) / variance.sqrt().clamp(min=1e-3)).clamp(-8, 8)
        return torch.stack([cosine, relative, rank, rank.mT, raw], -1)

    def state_features(edges: Tensor, given: Tensor) -> Tensor:
        """Features of "item i belongs to class c" from labels and edges, `[B, M, C, 19]`: four of the labels, and the
        mean, the maximum and the minimum of the five relations of the item to the other items with the label c.

        `edges` `[B, M, M, 5]` are those of `edge_features`; `given` `[B, M, C]` is one-hot.
        """
        items = given.shape[1]
        eye = torch.eye(items, dtype=torch.bool, device=given.device)
        members = given.bool().unsqueeze(1) & ~eye.view(1, items, items, 1)
        others = members.sum(2)
        mask, spread = members.unsqueeze(-1), edges.unsqueeze(3)
        # The statistics for a class without other items.
        neutral = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0], device=edges.device)
        none = (others == 0).unsqueeze(-1)
        mean = torch.where(mask, spread, 0.0).sum(2) / others.clamp(min=1).unsqueeze(-1)
        high = torch.where(mask, spread, -math.inf).amax(2)
        low = torch.where(mask, spread, math.inf).amin(2)
        statistics = torch.stack([torch.where(none, neutral, value) for value in (mean, high, low)], -1).flatten(-2)
        share = given.mean(1, keepdim=True).expand_as(given)
        labels = torch.stack([given, share, (others == 0).float(), 1 / (1 + others)], -1)
        return torch.cat([labels, statistics], -1)

    class Attention(nn.Module):
        """Attention between the items of an episode, with the same weights for the states of all classes."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.query = nn.Linear(2 * WIDTH, WIDTH)
            self.key = nn.Linear(2 * WIDTH, WIDTH, bias=False)
            self.value = nn.Linear(WIDTH, WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, states: Tensor, given: Tensor, edge_logits: Tensor) -> Tensor:
            """`states` [B, M, C, W], `given` [B, M, C], `edge_logits` [B, H, M, M]."""
            batch, items, classes, _ = states.shape
            part = WIDTH // HEADS
            normed = self.norm(states)
            pooled = torch.cat([normed.mean(2), (normed * given.unsqueeze(-1)).sum(2)], -1)
            queries = self.query(pooled).view(batch, items, HEADS, part).transpose(1, 2)
            keys = self.key(pooled).view(batch, items, HEADS, part).transpose(1, 2)
            values = self.value(normed).view(batch, items, classes, HEADS, part).permute(0, 3, 1, 2, 4).flatten(-2)
            weights = (queries @ keys.mT / math.sqrt(part) + edge_logits).softmax(-1)
            attended = (weights @ values).view(batch, HEADS, items, classes, part).permute(0, 2, 3, 1, 4)
            return states + self.out(attended.flatten(-2))

    class Mixing(nn.Module):
        """Mixes each state with the states of the same item for other classes, and with the states for the same class of the
        items that have its label."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.state = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.item = nn.Linear(2 * WIDTH, HIDDEN, bias=False)
            self.of_class = nn.Linear(WIDTH, HIDDEN)
            self.out = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, states: Tensor, given: Tensor) -> Tensor:
            """`states` [B, M, C, W], `given` [B, M, C]."""
            normed = self.norm(states)
            of_items = self.item(torch.cat([normed.mean(2), normed.amax(2)], -1)).unsqueeze(2)
            counts = given.sum(1).clamp(min=1).unsqueeze(-1)
            of_classes = self.of_class((normed * given.unsqueeze(-1)).sum(1) / counts).unsqueeze(1)
            return states + self.out(F.gelu(self.state(normed) + of_items + of_classes))

    class Relabel(nn.Module):
        """Edge network, input layer, LAYERS times attention and mixing, output; and the losses."""

        def __init__(self) -> None:
            super().__init__()
            # Five relations of a pair, and whether both items have the same label.
            self.edge_hidden = nn.Linear(6, EDGE_HIDDEN)
            self.edge_out = nn.Linear(EDGE_HIDDEN, LAYERS * HEADS, bias=False)
            self.features = nn.Linear(19, WIDTH)
            self.start = nn.Linear(WIDTH, WIDTH)
            self.attention = nn.ModuleList(Attention() for _ in range(LAYERS))
            self.mixing = nn.ModuleList(Mixing() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)
            # Per state: evidence for the class, the multiplier of its weight, evidence for none of the classes.
            self.out = nn.Linear(WIDTH, 3, bias=False)
            # Logits of the given class, more for the only item of a class, and of none of the classes.
            self.prior = nn.Parameter(torch.tensor([2.0, 1.5, -0.5]))
            self.log_scale = nn.Parameter(torch.tensor(math.log(10)))

        def forward(self, edges: Tensor, given: Tensor, view: Tensor | None = None) -> Tensor:
            """Outputs of every state, `[B, M, C, 3]`. `view` [B, M, W] is added to the hidden units of each item's states
            (torch_joint.py has one)."""
            same = given @ given.mT
            pairs = torch.cat([edges, same.unsqueeze(-1)], -1)
            logits = self.edge_out(F.gelu(self.edge_hidden(pairs)))
            # The edge network's part of the attention logits of each layer: LAYERS times [B, H, M, M].
            planes = logits.unflatten(-1, (LAYERS, HEADS)).permute(3, 0, 4, 1, 2)
            hidden = self.features(state_features(edges, given))
            states = self.start(F.gelu(hidden if view is None else hidden + view.unsqueeze(2)))
            for plane, attention, mixing in zip(planes, self.attention, self.mixing):
                states = mixing(attention(states, given, plane), given)
            return self.out(self.norm(states))

        def losses(self, support: Tensor, queries: Tensor, given: Tensor, truth: Tensor, answers: Tensor,
                   autocast: torch.dtype | None = None,
                   products: tuple[Tensor, Tensor] | None = None, view: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Mean cross-entropies of items and of queries. `truth` is C for "none of the classes". `products` are the
            inner products of the support with itself and with the queries, if the caller has them."""
            gram, query_products = products or (support @ support.mT, support @ queries.mT)
            edges = edge_features(gram)
            if autocast is None:
                out = self(edges, given, view)
            else:
                with torch.autocast(support.device.type, dtype=autocast, cache_enabled=False):
                    out = self(edges, given, view).float()
            classes, counts = given.shape[-1], given.sum(1, keepdim=True)
            # Logits of the classes: the output of each state plus a prior, which is large for the given class; last,
            # the logit of none of the classes.
            at_given = self.prior[0] + self.prior[1] * (counts == 1)
            class_logits = out[..., 0] + torch.where(given.bool(), at_given, -math.log(max(classes, 2) - 1))
            none = out[..., 2].mean(-1, keepdim=True) + self.prior[2]
            logits = torch.cat([class_logits, none], -1)
            items_loss = F.cross_entropy(logits.flatten(0, 1), truth.flatten())
            # Weights of the items in each prototype: the probability of the class times a multiplier between e^-3 and
            # e^3, plus a floor for the given class (for a class without items: for all items), normalised to sum to 1.
            multipliers = (3 * torch.tanh(out[..., 1] / 3)).exp()
            floor = torch.where(counts == 0, FLOOR / given.shape[1], FLOOR * given)
            weights = logits.softmax(-1)[..., :-1] * multipliers + floor
            weights = (weights / weights.sum(1, keepdim=True)).mT
            # Squared distances from inner products: |q|² + |p|² - 2 q · p.
            prototype_squares = ((weights @ gram) * weights).sum(-1, keepdim=True)
            distances = queries.square().sum(-1).unsqueeze(-2) + prototype_squares - 2 * (weights @ query_products)
            relative = distances / distances.mean((-2, -1), keepdim=True)
            scores = (-self.log_scale.exp() * relative).mT.flatten(0, 1)
            return items_loss, F.cross_entropy(scores, answers.flatten())

    return Relabel


# Names of modules outside the layers: in trueshot's files and in this network.
NAMES = {"edges.hidden": "edge_hidden", "edges.out": "edge_out", "start.features": "features", "start.out": "start",
         "out.norm": "norm", "out": "out"}


def own_name(name: str) -> tuple[str, bool]:
    """The name of a trueshot tensor in this network, and whether it is transposed."""
    if name in ("prior", "log_scale"):
        return name, False
    module, part = name.rsplit(".", 1)
    kind = {"scale": "weight", "shift": "bias"}.get(part, part)
    if module.startswith("layer"):
        layer, block, *rest = module.split(".")
        rest = ["of_class" if piece == "class" else piece for piece in rest]
        return ".".join([block, layer.removeprefix("layer"), *rest, kind]), part == "weight"
    return f"{NAMES[module]}.{kind}", part == "weight"


def check(path: Path) -> None:
    """Compares losses and gradients with those that trueshot's example `relabel` wrote to a file; fails if they differ
    by more than rounding."""
    import torch

    figures = json.loads(path.read_text())
    network = network_class()()
    parameters = dict(network.named_parameters())
    shapes = {name: tuple(entry["shape"]) for name, entry in figures["parameters"].items()}

    def tensor(name: str, values: list[float], transposed: bool):
        """Values of a trueshot tensor in the shape that this network has."""
        value = torch.tensor(values).view(shapes[name])
        return value.T if transposed else value

    with torch.no_grad():
        for name, entry in figures["parameters"].items():
            own, transposed = own_name(name)
            parameters[own].copy_(tensor(name, entry["values"], transposed).view_as(parameters[own]))
    count, dim, items = figures["episodes"], figures["dim"], len(figures["given"]) // figures["episodes"]
    support = torch.tensor(figures["support"]).view(count, items, dim)
    queries = torch.tensor(figures["queries"]).view(count, -1, dim)
    given = torch.nn.functional.one_hot(torch.tensor(figures["given"]).view(count, items), WAYS).float()
    truth, answers = torch.tensor(figures["truth"]).view(count, items), torch.tensor(figures["query_classes"]).view(count, -1)
    losses = network.losses(support, queries, given, truth, answers)
    sum(losses).backward()
    # Relative errors of the losses (of losses below 0.1, relative to 0.1) and of the gradients.
    loss_errors = [abs(loss.item() - expected) / max(expected, 0.1) for loss, expected in zip(losses, figures["losses"])]
    worst_loss = math.nan if any(map(math.isnan, loss_errors)) else max(loss_errors)
    errors = {}
    for name, entry in figures["parameters"].items():
        own, transposed = own_name(name)
        expected = tensor(name, entry["gradient"], transposed).reshape(parameters[own].shape)
        errors[name] = ((parameters[own].grad - expected).norm() / expected.norm().clamp(min=1e-12)).item()
    worst = max(errors, key=errors.__getitem__)
    print(json.dumps({"losses": [loss.item() for loss in losses], "worst_loss": worst_loss, "worst_gradient": errors[worst],
                      "tensor": worst}))
    # NaN is not within any bound.
    if not (worst_loss <= 1e-4 and all(error <= 1e-3 for error in errors.values())):
        benchlib.fail(f"the network differs from trueshot's: losses by {worst_loss:.1e}, {worst} by {errors[worst]:.1e}")


def training_step(compiled: bool, precision: str, dim: int) -> Callable[[], object]:
    """Returns a function that does one training step. About 30 % of the items have a random true class."""
    import torch

    torch.manual_seed(0)
    device = torch.device("cuda")
    network = network_class()().to(device)
    features = torch.randn(ROWS, dim, device=device).relu_()
    items = WAYS * SHOTS
    rows = torch.randint(ROWS, (EPISODES, items + WAYS * QUERIES), device=device)
    given = torch.arange(WAYS, device=device).repeat_interleave(SHOTS).expand(EPISODES, -1)
    one_hot = torch.nn.functional.one_hot(given, WAYS).float()
    wrong = torch.rand(EPISODES, items, device=device) < 0.3
    truth = torch.where(wrong, torch.randint(WAYS + 1, (EPISODES, items), device=device), given)
    answers = torch.arange(WAYS, device=device).repeat_interleave(QUERIES).expand(EPISODES, -1)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.01, fused=True, capturable=True)
    autocast = torch.bfloat16 if precision == "bf16" else None

    def loss(rows):
        """The sum of both losses for these rows of the table of features."""
        gathered = features[rows]
        return sum(network.losses(gathered[:, :items], gathered[:, items:], one_hot, truth, answers, autocast))

    run = torch.compile(loss) if compiled else loss

    def step():
        """The step that is timed."""
        optimiser.zero_grad(set_to_none=True)
        run(rows).backward()
        optimiser.step()

    return step


def step_times(step: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of single steps that are waited for, after ten steps without timing."""
    import torch

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def timed(step: Callable[[], object], seconds: float) -> dict:
    """Milliseconds of single steps that are waited for, and the mean of PIPELINED consecutive ones."""
    import torch

    times = step_times(step, seconds)
    begin = time.perf_counter()
    for _ in range(PIPELINED):
        step()
    torch.cuda.synchronize()
    pipelined = 1e3 * (time.perf_counter() - begin) / PIPELINED
    return {"ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4), "pipelined_ms": round(pipelined, 4)}


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a CUDA graph, after a warm-up on another stream, which capturing requires."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def time_modes(name: str, arguments: argparse.Namespace, make_step: Callable[[bool, str], Callable[[], object]]) -> None:
    """Times the step that `make_step(compiled, precision)` returns in every mode and precision of the arguments. `name` is the
    workload in the lines that are printed."""
    import torch

    modes, precisions = arguments.modes.split(","), arguments.precisions.split(",")
    for given, known, option in ((modes, MODES, "--modes"), (precisions, PRECISIONS, "--precisions")):
        if unknown := [word for word in given if word not in known]:
            benchlib.fail(f"{option}: '{unknown[0]}' is not known; known: {', '.join(known)}")
    if not torch.cuda.is_available():
        benchlib.fail("PyTorch finds no NVIDIA GPU on this machine")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    failed = False
    for precision in precisions:
        for mode in modes:
            stack = f"torch {torch.__version__} {precision} {'compile + graph' if mode == 'graph' else mode}"
            try:
                torch._dynamo.reset()
                step = make_step(mode != "eager", precision)
                figures = timed(captured(step) if mode == "graph" else step, arguments.seconds)
                print(json.dumps({"name": name, "stack": stack, **figures}), flush=True)
            except Exception as problem:  # compilation and capture errors have no common class
                failed = True
                benchlib.progress(f"error: {stack} failed: {str(problem)[:500]}")
    sys.exit(1 if failed else 0)


def add_timing_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `time_modes` uses."""
    parser.add_argument("--modes", default=",".join(MODES), metavar="MODE,..", help="modes to time [default: %(default)s]")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), metavar="NAME,..",
                        help="precisions to time [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="repeat each step for at least this long [default: %(default)s]")


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch")
    if arguments.check:
        return check(arguments.check)
    time_modes("relabel32", arguments, lambda compiled, precision: training_step(compiled, precision, arguments.dim))


if __name__ == "__main__":
    main()
