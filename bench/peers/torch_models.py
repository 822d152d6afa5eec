"""Networks, losses and workloads of the PyTorch peers (a module; the programs are torch_workloads.py and torch_cuda.py).

`WORKLOADS` has the workloads of `trueshot bench` that have a PyTorch counterpart, except relabel32 (torch_relabel.py). Each is
a function that takes `Settings` and returns a step: a function without arguments that does the timed work once. Data and
parameters are made before the step is returned, and are not timed.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The bank of cached features: classes, rows per class, values per row.
CLASSES, ITEMS, DIM = 20, 600, 1600
# Episodes on cached features per step, and per batch.
EPISODES, BATCH = 1000, 100
# Classes per episode, support items and queries per class.
WAYS, SHOTS, QUERIES = 5, 5, 15


@dataclass(frozen=True)
class Settings:
    """How a step runs."""

    device: torch.device
    compiled: bool = False
    """Whether networks and losses go through `torch.compile`."""
    autocast: torch.dtype | None = None
    """Precision of matrix products and convolutions on a GPU; None: f32, or TF32 where PyTorch is allowed to."""

    @property
    def cuda(self) -> bool:
        """Whether the step runs on an NVIDIA GPU."""
        return self.device.type == "cuda"

    def compile(self, function: Callable) -> Callable:
        """The function or network, compiled if `compiled` is true."""
        return torch.compile(function) if self.compiled else function

    def precision(self) -> contextlib.AbstractContextManager:
        """A context in which matrix products and convolutions have the precision `autocast`."""
        if self.autocast is None:
            return contextlib.nullcontext()
        # A graph is captured once and replayed: a cache of cast weights would keep those of the first step.
        return torch.autocast(self.device.type, dtype=self.autocast, cache_enabled=False)

    def layout(self, value):
        """A network or images in the memory layout that is fastest on the device; on a CPU that is PyTorch's default."""
        value = value.to(self.device)
        return value.to(memory_format=torch.channels_last) if self.cuda else value

    def adamw(self, network: nn.Module, rate: float) -> torch.optim.Optimizer:
        """AdamW with the fused kernel, which updates all parameters in one call."""
        return torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.01, fused=True, capturable=self.cuda)


Step = Callable[[], object]
"""Does the timed work of a workload once."""


def squared_distances(queries: Tensor, prototypes: Tensor) -> Tensor:
    """Squared Euclidean distances `[.., queries, classes]`, by one matrix product."""
    products = queries @ prototypes.mT
    lengths = queries.square().sum(-1, keepdim=True) + prototypes.square().sum(-1).unsqueeze(-2)
    return torch.sub(lengths, products, alpha=2)


def classes_of(each: int, device: torch.device) -> Tensor:
    """The classes of WAYS x `each` items that are sorted by class."""
    return torch.arange(WAYS, device=device).repeat_interleave(each)


# --- Episodes on cached features: eval_mean, eval_median, eval_cosine ---------------------------------


def mean(items: Tensor) -> Tensor:
    """Class means of items `[.., shots, dim]`."""
    return items.mean(-2)


def geometric_median(items: Tensor, steps: int = 5, eps: float = 0.5) -> Tensor:
    """Geometric medians, by Weiszfeld's iteration with smoothed distances, from the mean."""
    median = items.mean(-2, keepdim=True)
    for _ in range(steps):
        weights = ((items - median).square().sum(-1) + eps * eps).rsqrt()
        weights = weights / weights.sum(-1, keepdim=True)
        median = weights.unsqueeze(-2) @ items
    return median.squeeze(-2)


def cosine_weighted(items: Tensor, temperature: float = 0.2) -> Tensor:
    """Means weighted by a softmax over the mean cosine with the other items of the class."""
    unit = F.normalize(items, dim=-1)
    # The cosine of an item with itself is 1, and does not count.
    similarity = ((unit @ unit.mT).sum(-1) - 1) / (items.shape[-2] - 1)
    return ((similarity / temperature).softmax(-1).unsqueeze(-2) @ items).squeeze(-2)


@functools.lru_cache(maxsize=1)
def feature_bank(device: torch.device) -> Tensor:
    """Features like those behind a ReLU, `[CLASSES x ITEMS, DIM]`."""
    return torch.randn(CLASSES * ITEMS, DIM, device=device).relu_()


def evaluation(prototypes: Callable[[Tensor], Tensor], settings: Settings) -> Step:
    """1,000 episodes of 5 classes, 5 shots and 15 queries per class in batches of 100, sampling included."""
    device = settings.device
    bank, answers = feature_bank(device), classes_of(QUERIES, device)

    @torch.inference_mode()
    def step() -> Tensor:
        right = torch.zeros((), device=device)
        for _ in range(EPISODES // BATCH):
            # Sorting random numbers draws without replacement for a whole batch.
            classes = torch.rand(BATCH, CLASSES, device=device).argsort(1)[:, :WAYS]
            items = torch.rand(BATCH, WAYS, ITEMS, device=device).topk(SHOTS + QUERIES).indices
            rows = classes.unsqueeze(2) * ITEMS + items
            drawn = bank.index_select(0, rows.flatten()).view(*rows.shape, DIM)
            support, queries = drawn.split([SHOTS, QUERIES], dim=2)
            distances = squared_distances(queries.flatten(1, 2), prototypes(support))
            right += (distances.argmin(-1) == answers).float().mean(1).sum()
        return right

    return step


# --- Conv4: embed84, proto84, proto32 -----------------------------------------------------------------


def conv4() -> nn.Module:
    """Four blocks of 3x3 convolution (64 channels), batch norm, ReLU and 2x2 max pooling; features are flattened."""
    layers: list[nn.Module] = []
    for channels in (3, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def images(size: int, settings: Settings) -> Tensor:
    """One episode of normalised images: 5 classes of 5 + 15."""
    return settings.layout(torch.randn(WAYS * (SHOTS + QUERIES), 3, size, size))


def embedding(settings: Settings) -> Step:
    """Features of 100 images of 84 px."""
    network = settings.layout(conv4()).eval()
    forward, batch = settings.compile(network), images(84, settings)

    @torch.no_grad()
    def step() -> Tensor:
        with settings.precision():
            return forward(batch)

    return step


def prototypical_loss(features: Tensor) -> Tensor:
    """Cross-entropy of the queries of one episode; the items of a class follow each other, support first."""
    support, queries = features.unflatten(0, (WAYS, -1)).split([SHOTS, QUERIES], dim=1)
    distances = squared_distances(queries.flatten(0, 1), support.mean(1))
    return F.cross_entropy(-distances, classes_of(QUERIES, features.device))


def training_step(network: nn.Module, rate: float, loss: Callable[[], Tensor], settings: Settings) -> Step:
    """A step that computes the loss and its gradients, and updates the parameters with AdamW."""
    optimiser = settings.adamw(network, rate)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    return step


def backbone_training(size: int, settings: Settings) -> Step:
    """One ProtoNet training step of Conv4 on 100 images."""
    network, batch = settings.layout(conv4()).train(), images(size, settings)

    def loss(batch: Tensor) -> Tensor:
        with settings.precision():
            features = network(batch)
        return prototypical_loss(features.float())

    compiled = settings.compile(loss)
    return training_step(network, 1e-3, lambda: compiled(batch), settings)


# --- TraNFS: tranfs16, tranfs_fwd64 -------------------------------------------------------------------


class TraNFS(nn.Module):
    """Prototypes from a transformer over the support items of an episode, with one token per class (Liang et al., 2022).

    The projection to tokens and the one back are one matrix, as in the authors' program and in trueshot.
    """

    def __init__(self, layers: int = 3, width: int = 128, heads: int = 8) -> None:
        super().__init__()
        self.projection = nn.Parameter(nn.init.orthogonal_(torch.empty(DIM, width)))
        self.positions = nn.Parameter(torch.randn(WAYS, width))
        self.register_buffer("class_tokens", torch.randn(WAYS, width))
        self.register_buffer("given", classes_of(SHOTS, torch.device("cpu")))
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.mislabelled = nn.Linear(DIM, 1)

    def forward(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """Prototypes `[episodes, classes, dim]` and logits of "mislabelled" `[episodes, items]` of sorted items."""
        classes = (self.class_tokens + self.positions).expand(len(support), -1, -1)
        items = support @ self.projection + self.positions[self.given]
        encoded = self.encoder(torch.cat([classes, items], dim=1))
        # The weight of "mislabelled" is projected instead of the items: fewer operations.
        direction = self.mislabelled.weight @ self.projection
        logits = F.linear(encoded[:, WAYS:], direction, self.mislabelled.bias).squeeze(-1)
        return encoded[:, :WAYS] @ self.projection.T, logits


def tranfs_loss(network: nn.Module, support: Tensor, queries: Tensor, wrong: Tensor, settings: Settings) -> Tensor:
    """Cross-entropy of the queries, distance to the means of the clean items, and cross-entropy of "mislabelled"."""
    with settings.precision():
        prototypes, logits = network(support)
    prototypes, logits = prototypes.float(), logits.float()
    answers = classes_of(QUERIES, support.device).repeat(len(support))
    queries_loss = F.cross_entropy(-squared_distances(queries, prototypes).flatten(0, 1), answers)
    clean = (1 - wrong).view(-1, WAYS, 1, SHOTS)
    means = (clean @ support.unflatten(1, (WAYS, SHOTS))).squeeze(2) / clean.sum(-1).clamp(min=1)
    clean_loss = (prototypes - means).square().sum(-1).mean()
    return queries_loss + clean_loss + 0.5 * F.binary_cross_entropy_with_logits(logits, wrong)


def features(episodes: int, rows: int, settings: Settings) -> Tensor:
    """Features like those behind a ReLU, `[episodes, rows, DIM]`."""
    return torch.randn(episodes, rows, DIM, device=settings.device).relu_()


def tranfs_training(settings: Settings) -> Step:
    """One training step of a TraNFS with 3 layers on 16 episodes in which 30 % of the labels are wrong."""
    network = TraNFS().to(settings.device).train()
    support, queries = features(16, WAYS * SHOTS, settings), features(16, WAYS * QUERIES, settings)
    wrong = (torch.rand(16, WAYS * SHOTS, device=settings.device) < 0.3).float()
    loss = settings.compile(functools.partial(tranfs_loss, network, settings=settings))
    return training_step(network, 5e-4, lambda: loss(support, queries, wrong), settings)


def tranfs_prototypes(settings: Settings) -> Step:
    """Prototypes of 64 episodes."""
    network = TraNFS().to(settings.device).eval()
    forward, support = settings.compile(network), features(64, WAYS * SHOTS, settings)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        with settings.precision():
            return forward(support)

    return step


# --- MAML: maml32, fomaml32 ---------------------------------------------------------------------------

# Tasks per step, and steps of adaptation per task with their rate.
TASKS, INNER_STEPS, INNER_RATE = 4, 5, 0.01


def maml_parameters(device: torch.device, size: int) -> dict[str, Tensor]:
    """Parameters of a Conv4 and a linear layer, by name; adaptation replaces them without changing a module."""
    values = {}
    for block, channels in enumerate((3, 64, 64, 64)):
        values[f"weight{block}"] = nn.init.xavier_uniform_(torch.empty(64, channels, 3, 3))
        values[f"bias{block}"] = torch.zeros(64)
        values[f"gamma{block}"] = torch.rand(64)
        values[f"beta{block}"] = torch.zeros(64)
    values["weight"] = nn.init.xavier_uniform_(torch.empty(WAYS, 64 * (size // 16) ** 2))
    values["bias"] = torch.zeros(WAYS)
    return {name: value.to(device).requires_grad_() for name, value in values.items()}


def maml_logits(values: dict[str, Tensor], batch: Tensor) -> Tensor:
    """Logits of a batch; batch norm uses the statistics of the batch."""
    for block in range(4):
        batch = F.conv2d(batch, values[f"weight{block}"], values[f"bias{block}"], padding=1)
        batch = F.batch_norm(batch, None, None, values[f"gamma{block}"], values[f"beta{block}"], training=True)
        batch = F.max_pool2d(F.relu(batch), 2)
    return F.linear(batch.flatten(1), values["weight"], values["bias"])


def maml_training(second_order: bool, settings: Settings, size: int = 32) -> Step:
    """One step on 4 tasks of 25 + 75 images of 32 px: 5 steps of adaptation each, then Adam."""
    device = settings.device
    parameters = maml_parameters(device, size)
    optimiser = torch.optim.Adam(parameters.values(), lr=3e-3, fused=True, capturable=settings.cuda)
    support, queries = images(size, settings).split([WAYS * SHOTS, WAYS * QUERIES])
    given, answers = classes_of(SHOTS, device), classes_of(QUERIES, device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        for _ in range(TASKS):
            adapted = dict(parameters)
            for _ in range(INNER_STEPS):
                loss = F.cross_entropy(maml_logits(adapted, support), given)
                gradients = torch.autograd.grad(loss, list(adapted.values()), create_graph=second_order)
                adapted = {
                    name: value - INNER_RATE * gradient
                    for (name, value), gradient in zip(adapted.items(), gradients)
                }
            (F.cross_entropy(maml_logits(adapted, queries), answers) / TASKS).backward()
        optimiser.step()

    return step


WORKLOADS: dict[str, Callable[[Settings], Step]] = {
    "eval_mean": functools.partial(evaluation, mean),
    "eval_median": functools.partial(evaluation, geometric_median),
    "eval_cosine": functools.partial(evaluation, cosine_weighted),
    "embed84": embedding,
    "proto84": functools.partial(backbone_training, 84),
    "proto32": functools.partial(backbone_training, 32),
    "maml32": functools.partial(maml_training, True),
    "fomaml32": functools.partial(maml_training, False),
    "tranfs16": tranfs_training,
    "tranfs_fwd64": tranfs_prototypes,
}
"""The workloads, by their names in `trueshot bench`."""
