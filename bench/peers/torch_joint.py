#!/usr/bin/env python3
"""Time a step that trains a Conv4 and the head Relabel together in PyTorch.

    python bench/peers/torch_joint.py
    python bench/peers/torch_joint.py --modes graph --precisions bf16
    cargo run --release -p trueshot-cuda --example joint

A step has 8 episodes of 5 classes with 5 items and 8 queries each: 520 images of 84 px. The images are on the GPU and already
prepared; trueshot is also measured with the augmentation of its training runs. What is computed:

  - The head has the form for one backbone: items and queries are centred at the mean of the support set and scaled to unit
    length, and besides the relations between items, the network gets a projection of each item (torch_relabel.py has the
    rest of the network).
  - The loss is that of the head plus half the loss of nearest prototypes, which are means of the items of the true classes.
  - A step has the forward and backward pass of both networks, fused AdamW, and running averages of the mean of all features
    and of all parameters.

Modes: `eager`; `compile` (torch.compile); `graph` (torch.compile, and the whole step as one CUDA graph). Precisions: TF32,
or bf16 autocast for both networks (inner products and losses stay f32). Prints one JSON line per mode and precision, as
torch_relabel.py does. Needs torch with CUDA and an NVIDIA GPU.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402
from torch_relabel import WIDTH, add_timing_arguments, network_class, time_modes  # noqa: E402

# Episodes per step, classes, items and queries per class, pixels, dimensions of a feature vector and of its projection.
EPISODES, WAYS, SHOTS, QUERIES, SIZE, DIM, VIEW = 8, 5, 5, 8, 84, 1600, 64
# Options of the training, at trueshot's defaults: dropout of the features before the projection, weight of the loss of nearest
# prototypes, and the part of a running average that a step replaces, for the mean of the features and for the parameters.
DROPOUT, PROTOTYPE_WEIGHT, MEAN_RATE, AVERAGE_RATE = 0.2, 0.5, 0.01, 0.001


def head_class():
    """The class of Relabel for one backbone: the network of torch_relabel.py with a view of the items."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    class JointRelabel(network_class()):
        """Relabel with a projection of each item, `view`, which is added to the hidden units of the item's states."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(DIM))
            self.projection = nn.Linear(DIM, VIEW, bias=False)
            self.view_norm = nn.LayerNorm(VIEW)
            self.view_start = nn.Linear(VIEW, WIDTH, bias=False)

        def joint_losses(self, support: Tensor, queries: Tensor, *labels, autocast) -> tuple[Tensor, Tensor]:
            """The `losses` of the network on centred rows of unit length, with a view of the support items."""
            with torch.autocast(support.device.type, torch.bfloat16, autocast is not None, cache_enabled=False):
                rows = F.dropout(F.normalize(support - self.mean, dim=-1), DROPOUT, self.training)
                view = self.view_start(self.view_norm(self.projection(rows)))
            centre = support.mean(1, keepdim=True)
            support, queries = F.normalize(support - centre, dim=-1), F.normalize(queries - centre, dim=-1)
            return self.losses(support, queries, *labels, autocast, view=view)

    return JointRelabel


def training_step(compiled: bool, precision: str) -> Callable[[], object]:
    """Returns a function that does one training step of both networks. About 30 % of the items have a random true class."""
    import torch
    import torch.nn.functional as F
    from torch_models import conv4

    torch.manual_seed(0)
    device = torch.device("cuda")
    backbone = conv4().to(device).to(memory_format=torch.channels_last).train()
    head = head_class()().to(device).train()
    items, rows = WAYS * SHOTS, WAYS * (SHOTS + QUERIES)
    images = torch.randn(EPISODES * rows, 3, SIZE, SIZE, device=device).contiguous(memory_format=torch.channels_last)
    given = torch.arange(WAYS, device=device).repeat_interleave(SHOTS).expand(EPISODES, -1)
    wrong = torch.rand(EPISODES, items, device=device) < 0.3
    truth = torch.where(wrong, torch.randint(WAYS + 1, (EPISODES, items), device=device), given)
    answers = torch.arange(WAYS, device=device).repeat_interleave(QUERIES).expand(EPISODES, -1)
    one_hot = F.one_hot(given, WAYS).float()
    true_classes = F.one_hot(truth, WAYS + 1).float()[..., :WAYS]
    parameters = [*backbone.parameters(), *head.parameters()]
    averages = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.01, fused=True, capturable=True)
    autocast = torch.bfloat16 if precision == "bf16" else None

    def loss(images):
        """The loss of the step, and the mean of all features, `[DIM]`."""
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast is not None, cache_enabled=False):
            features = backbone(images)
        features = features.float().view(EPISODES, rows, DIM)
        support, queries = features[:, :items], features[:, items:]
        terms = head.joint_losses(support, queries, one_hot, truth, answers, autocast=autocast)
        counts = true_classes.sum(1).unsqueeze(-1)
        prototypes = true_classes.mT @ support / counts.clamp(min=1)
        distances = torch.cdist(queries, prototypes).square()
        by_prototypes = F.cross_entropy(-distances.flatten(0, 1), answers.flatten())
        return terms[0] + terms[1] + PROTOTYPE_WEIGHT * by_prototypes, features.detach().mean((0, 1))

    run = torch.compile(loss) if compiled else loss

    def step():
        """The step that is timed."""
        optimiser.zero_grad(set_to_none=True)
        value, mean = run(images)
        value.backward()
        optimiser.step()
        head.mean.lerp_(mean, MEAN_RATE)
        torch._foreach_lerp_(averages, [parameter.detach() for parameter in parameters], AVERAGE_RATE)

    return step


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    add_timing_arguments(parser)
    arguments = parser.parse_args()
    benchlib.require("torch")
    time_modes("joint520", arguments, training_step)


if __name__ == "__main__":
    main()
