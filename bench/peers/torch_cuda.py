#!/usr/bin/env python3
"""Time the workloads of `trueshot bench` in PyTorch on an NVIDIA GPU, with the fastest settings PyTorch offers.

    python bench/peers/torch_cuda.py --precision bf16 --compile --only proto84,tranfs16

The settings: channels-last images, fused AdamW, TF32 or autocast, optionally `torch.compile`, and the whole step as one CUDA
graph, so that launching kernels costs the CPU nothing. Prints one JSON line per workload:

  name, stack     the workload and the settings
  ms, min_ms      median and minimum of the milliseconds of a step that is waited for
  reps            the number of these steps
  pipelined_ms    mean of 100 steps that are started one after the other without waiting, which is how training runs

The workloads are those of torch_workloads.py, and `conv42`: one 3x3 convolution of 64 to 64 channels on 100 images of 42 px
by cuDNN (the largest convolution of proto84), in TF32, bf16 and fp16 whatever --precision is. Its line has the rate in
TFLOP/s instead of the last three figures.

Run it once per precision with --compile and once without; the fastest is the figure to compare with. A workload that
fails, because PyTorch cannot capture or compile it, is reported on standard error, and the others still run; the exit
status is then 1. Needs torch with CUDA and an NVIDIA GPU.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402
from torch_relabel import PIPELINED, captured, step_times  # noqa: E402

# Precisions by name: the data type for autocast in torch, or None for f32 with TF32 allowed.
PRECISIONS = {"tf32": None, "bf16": "bfloat16", "fp16": "float16"}
# The default of --only.
DEFAULT = ["embed84", "proto84", "proto32", "tranfs16", "tranfs_fwd64"]


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--precision", choices=PRECISIONS, default="tf32",
                        help="of matrix products and convolutions [default: %(default)s]")
    parser.add_argument("--compile", action="store_true", help="compile networks and losses with torch.compile")
    parser.add_argument("--only", default=",".join(DEFAULT), metavar="NAME,..",
                        help="workloads to time [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S",
                        help="repeat each workload for at least this long [default: %(default)s]")
    return parser.parse_args()


def elapsed(work: Callable[[], object]) -> float:
    """Milliseconds that `work` takes on the GPU, from its first to its last kernel."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def time_graph(replay: Callable[[], object], seconds: float) -> dict:
    """The times of a step, which `replay` runs, as the figures of a JSON line."""
    times = step_times(replay, seconds)
    pipelined = elapsed(lambda: [replay() for _ in range(PIPELINED)]) / PIPELINED
    return {"ms": round(statistics.median(times), 4), "min_ms": round(min(times), 4), "reps": len(times),
            "pipelined_ms": round(pipelined, 4)}


def convolutions() -> None:
    """Times the workload `conv42`, and prints one line per data type."""
    import torch
    import torch.nn.functional as F

    # One convolution is so short that a graph repeats it 50 times.
    images, channels, size, repetitions = 100, 64, 42, 50
    for name, dtype in (("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        def random_tensor(*shape: int) -> torch.Tensor:
            """Random values on the GPU, channels last."""
            return torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)

        batch, filters = random_tensor(images, channels, size, size), random_tensor(channels, channels, 3, 3)
        with torch.no_grad():
            replay = captured(lambda: [F.conv2d(batch, filters, padding=1) for _ in range(repetitions)])
            milliseconds = statistics.median(elapsed(replay) / repetitions for _ in range(7))
        operations = 2 * images * size * size * channels * channels * 9
        print(json.dumps({"name": "conv42", "stack": f"cuDNN {name}", "ms": round(milliseconds, 4),
                          "tflops": round(operations / milliseconds / 1e9)}), flush=True)


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("torch")
    import torch

    import torch_models

    names = [name for name in arguments.only.split(",") if name]
    known = [*torch_models.WORKLOADS, "conv42"]
    if unknown := [name for name in names if name not in known]:
        benchlib.fail(f"--only: there is no workload '{unknown[0]}'; known: {', '.join(known)}")
    if not torch.cuda.is_available():
        benchlib.fail("PyTorch finds no NVIDIA GPU on this machine; torch_workloads.py times the same on a CPU")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    precision = PRECISIONS[arguments.precision]
    settings = torch_models.Settings(
        torch.device("cuda"), compiled=arguments.compile, autocast=getattr(torch, precision) if precision else None
    )
    stack = f"torch {torch.__version__} {arguments.precision} {'compile + ' if arguments.compile else ''}graph"
    failed = False
    for name in names:
        try:
            if name == "conv42":
                convolutions()
            else:
                timed = time_graph(captured(torch_models.WORKLOADS[name](settings)), arguments.seconds)
                print(json.dumps({"name": name, "stack": stack, **timed}), flush=True)
        except Exception as problem:  # compilation and capture errors have no common class
            failed = True
            benchlib.progress(f"error: {name} with {stack} failed: {str(problem)[:500]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
