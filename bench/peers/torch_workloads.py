#!/usr/bin/env python3
"""Time the workloads of `trueshot bench` in PyTorch.

    python bench/peers/torch_workloads.py --only eval_mean,embed84 --seconds 3
    python bench/peers/torch_workloads.py --only embed84,proto84 --mode compile

Prints one JSON line per workload: `name`, `ms` (median of the repetitions), `min_ms`, `reps`, `mode`, `allocator`.
Every workload runs three times before the first repetition is timed, then at least five times and for --seconds. To
compare, run `trueshot bench --only NAMES --threads 2` on the same machine; bench/measure/speed.py and
bench/measure/networks.py run both in turns.

  eval_mean, eval_median, eval_cosine   1,000 episodes (5-way 5-shot, 15 queries per class, no noise) from cached
                                        features, 20 classes x 600 x 1600 in f32, sampling included
  embed84                               features of 100 images of 84 px by Conv4
  proto84, proto32                      one ProtoNet training step of Conv4 on 100 images, AdamW included
  maml32, fomaml32                      one step of second-order and of first-order MAML on 4 tasks of 100 images,
                                        5 steps of adaptation, Adam included
  tranfs16                              one training step of TraNFS with 3 layers on 16 episodes, AdamW included
  tranfs_fwd64                          prototypes of 64 episodes by TraNFS

The figure to compare with is the faster of --mode eager and --mode compile, with the tuned allocator. What
`torch.compile` cannot speed up (episodes on cached features have no network; MAML needs gradients of gradients, which
it does not support) runs in eager mode only. The strongest settings for a GPU are in torch_cuda.py. Needs torch; with
--mode compile on a CPU also a C++ compiler.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

EAGER_ONLY = {"eval_mean", "eval_median", "eval_cosine", "maml32", "fomaml32"}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--only", default="", metavar="NAME,..",
                        help="workloads to time [default: all that the mode can run]")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager",
                        help="compile: through torch.compile [default: %(default)s]")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="repeat each workload for at least this long [default: %(default)s]")
    benchlib.add_threads(parser)
    benchlib.add_allocator(parser)
    return parser.parse_args()


def chosen(only: str, mode: str, known: list[str]) -> list[str]:
    """The workloads to run; an unknown or unsuitable name is an error."""
    names = [name for name in only.split(",") if name]
    for name in names:
        if name not in known:
            benchlib.fail(f"--only: there is no workload '{name}'; known: {', '.join(known)}")
        if mode == "compile" and name in EAGER_ONLY:
            benchlib.fail(f"--only: torch.compile does not apply to '{name}'; use --mode eager")
    return names or [name for name in known if mode == "eager" or name not in EAGER_ONLY]


def repeat(step: Callable[[], object], seconds: float, finish: Callable[[], object]) -> list[float]:
    """Milliseconds of every repetition; `finish` waits for work that was only started."""
    for _ in range(3):
        step()
    finish()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        step()
        finish()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch")
    benchlib.use_allocator(arguments.allocator)
    import torch

    import torch_models

    names = chosen(arguments.only, arguments.mode, list(torch_models.WORKLOADS))
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        benchlib.fail("--device cuda: PyTorch finds no NVIDIA GPU on this machine")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    settings = torch_models.Settings(device, compiled=arguments.mode == "compile")
    for name in names:
        times = repeat(torch_models.WORKLOADS[name](settings), arguments.seconds, finish)
        print(json.dumps({
            "name": name, "ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4), "reps": len(times),
            "mode": arguments.mode, "allocator": arguments.allocator,
        }), flush=True)


if __name__ == "__main__":
    main()
