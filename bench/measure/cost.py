#!/usr/bin/env python3
"""Count parameters and operations of the methods with a model, time one episode of every method, and write the page on cost.

    python bench/measure/cost.py --features test.safetensors --tranfs t2-sym.safetensors t3-sym.safetensors \\
        --out docs/results/cost.md

An episode is 5-way 5-shot with 15 queries per class, as by default in `trueshot eval`, which is run for one method at
a time. Columns of the page:

  parameters           values in the model file; only methods with a model have any
  million operations   additions and multiplications in the matrix products for a support set, computed from the shapes of
                       the matrices; only for methods with a model
  ms                   milliseconds per episode: the difference between a long and a short run, so that reading the file
                       does not count

--features is an embeddings file of at least 5 classes with 25 rows each; --tranfs are models that `trueshot train tranfs`
wrote. Takes about a minute; measure on an idle machine.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Classes per episode, support items per class, and queries per episode: the defaults of `trueshot eval`.
WAYS, SHOTS, QUERIES = 5, 5, 75
# The number of inputs of the input layer of Relabel, per state.
STATE_FEATURES = 19
# Episodes of the short and of the long run.
SHORT, LONG = 500, 4500
# Methods without a model file; their parameters and operations are not counted.
WITHOUT_MODEL = ["protonet", "median", "euclidean", "absolute", "cosine", "nearest", "matching", "linear", "baseline++",
                 "rnnp"]
RELABEL_MODEL = benchlib.ROOT / "crates" / "core" / "assets" / "relabel.safetensors"


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--features", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="embeddings to draw episodes from")
    parser.add_argument("--tranfs", type=benchlib.existing_file, nargs="*", default=[], metavar="MODEL",
                        help="TraNFS models for these embeddings [default: none]")
    parser.add_argument("--relabel", type=benchlib.existing_file, default=str(RELABEL_MODEL), metavar="MODEL",
                        help="the file of the built-in Relabel model, only to count its parameters "
                             "[default: crates/core/assets/relabel.safetensors]")
    benchlib.add_out(parser, "cost.md")
    benchlib.add_trueshot(parser)
    benchlib.add_threads(parser)
    return parser.parse_args()


def conv4_operations(size: int, channels: int) -> int:
    """Operations of four direct convolutions (3x3, 64 output channels) on one image of `size` x `size` pixels; each is
    followed by 2x2 pooling. A multiplication and an addition are two operations, here and below."""
    return sum((size >> block) ** 2 * (channels if block == 0 else 64) * 9 * 64 * 2 for block in range(4))


def tranfs_operations(dim: int, layers: int, width: int = 128, hidden: int = 128) -> int:
    """Operations of TraNFS for one support set: down-projection of the items, encoder layers, up-projection of the
    class tokens. `dim` is the length of an embedding, `width` that of a token, `hidden` the units of the feed-forward
    network.
    """
    items, tokens = WAYS * SHOTS, WAYS * (SHOTS + 1)
    # Query, key, value and output projections, feed-forward network; then attention between all tokens.
    layer = 2 * tokens * width * (4 * width + 2 * hidden) + 4 * tokens * tokens * width
    return 2 * items * dim * width + layers * layer + 2 * WAYS * width * dim


def relabel_operations(dim: int, layers: int = 4, width: int = 64, hidden: int = 128, edge: int = 64, heads: int = 4) -> int:
    """Operations of Relabel for one support set: Gram matrix, edge network, input layer, attention and mixing layers.

    The edge network has `edge` hidden units and maps 6 features of a pair of items to one attention logit per layer and
    head. The layers update one state of length `width` per item and class; `hidden` are the units of a mixing layer.
    """
    items = WAYS * SHOTS
    states, pairs = items * WAYS, items * items
    edges = 2 * pairs * (6 * edge + edge * layers * heads)
    # Queries and keys per item from 2 * width numbers; their products; attended values; value and output projections.
    attention = 2 * items * 2 * width * 2 * width + 2 * pairs * width + 2 * pairs * WAYS * width + 4 * states * width * width
    # The hidden layer has a part per state, one of 2 * width numbers per item and one per class; then the output.
    mixing = 2 * hidden * width * (states + 2 * items + WAYS + states)
    input_layer = 2 * states * (STATE_FEATURES * width + width * width)
    # The Gram matrix is symmetric, so half of it is computed.
    return pairs * dim + edges + input_layer + layers * (attention + mixing)


def milliseconds(arguments: argparse.Namespace, method: str) -> float:
    """The time of one episode with a method of `trueshot eval`, in milliseconds."""
    def run(episodes: int) -> float:
        """Seconds of an evaluation with this number of episodes."""
        # `as=timed` gives the method a label that --baseline can name.
        command = [arguments.trueshot, "eval", arguments.features, "--methods", f"{method}:as=timed", "--baseline", "timed",
                   "--noise", "symmetric=40", "--episodes", str(episodes), "--threads", str(arguments.threads),
                   "--format", "json"]
        start = time.perf_counter()
        benchlib.output(command)
        return time.perf_counter() - start

    benchlib.progress(f"timing {method}")
    return 1e3 * (run(LONG) - run(SHORT)) / (LONG - SHORT)


def layers_of(model: Path) -> int:
    """The number of layers in a TraNFS model file."""
    header, _ = benchlib.read_header(model)
    try:
        return json.loads(header["__metadata__"]["config"])["options"]["layers"]
    except (KeyError, ValueError):
        benchlib.fail(f"--tranfs {model}: this is not a model that `trueshot train tranfs` wrote")


def page(result: dict) -> str:
    """The Markdown page, from the result that is also written as JSON."""
    rows = [
        [name, f"{cost['parameters']:,}" if cost["parameters"] else "-",
         f"{cost['operations'] / 1e6:.1f}" if cost["operations"] else "-", f"{cost['ms']:.3f}"]
        for name, cost in result["methods"].items()
    ]
    backbones = [[f"Conv4, {size} px", f"{conv4_operations(size, channels) / 1e6:.1f}", str(64 * (size >> 4) ** 2)]
                 for size, channels in ((84, 3), (32, 3), (28, 1))]
    return benchlib.wrapped(f"""# What it costs

A 5-way 5-shot support set with {result['dim']} features per item: parameters of the method, millions of additions and
multiplications in its matrix products for the support set, and milliseconds per episode with the answers to {QUERIES} queries
on {result['threads']} threads, with everything except reading the file.

{benchlib.table(["method", "parameters", "million operations", "ms"], rows)}

The backbone dominates: one image takes as many operations as several support sets.

{benchlib.table(["backbone", "million operations per image", "features per image"], backbones)}

Operations of a Conv4 are those of direct convolutions; trueshot needs fewer
([how](../architecture.md#the-networks)). A Conv4 has 113,088 parameters (111,936 for drawings) and 512 running
statistics.
[Networks against PyTorch](networks.md) has the times of training steps,
[How the heads were trained](heads-commands.md) those of whole trainings.

```sh
python bench/measure/cost.py --features test.safetensors --tranfs t2-sym.safetensors t3-sym.safetensors \\
    --out docs/results/cost.md
```

{benchlib.machine_sentence(result['machine'], result['versions'], result['threads'])}
""")


def main() -> None:
    arguments = parse_arguments()
    machine = benchlib.describe_machine()
    header, _ = benchlib.read_header(arguments.features)
    dim = benchlib.tensor_of(header, arguments.features, "features")["shape"][1]
    # Name on the page, method of `trueshot eval`, parameters and operations (None: not counted).
    methods = [(method, method, None, None) for method in WITHOUT_MODEL]
    for path in arguments.tranfs:
        layers = layers_of(path)
        name = f"TraNFS-{layers}"
        if any(name == other for other, *_ in methods):
            benchlib.fail(f"--tranfs {path}: another model has {layers} layers, too; give one model per number of layers")
        methods.append((name, f"tranfs:model={path}", benchlib.parameter_count(path),
                        tranfs_operations(dim, layers)))
    methods.append(("Relabel", "relabel", benchlib.parameter_count(arguments.relabel), relabel_operations(dim)))
    costs = {
        name: {"parameters": parameters, "operations": operations, "ms": milliseconds(arguments, method)}
        for name, method, parameters, operations in methods
    }
    result = {
        "machine": machine,
        "versions": {"trueshot": benchlib.trueshot_version(arguments.trueshot)},
        "threads": arguments.threads,
        "dim": dim,
        "methods": costs,
    }
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
