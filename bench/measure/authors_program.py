#!/usr/bin/env python3
"""Replay the same episodes in the program of the paper's authors and in trueshot, and compare the accuracies.

    python bench/measure/authors_program.py CHECKOUT --features test.safetensors --outliers val.safetensors \\
        --tranfs symmetric.safetensors --tranfs paired.safetensors --out docs/results/authors-program.md

CHECKOUT is a checkout of https://github.com/facebookresearch/noisy_few_shot, which has its own licence (CC BY-NC 4.0);
nothing of it is part of this repository.

How the episodes are replayed:
  - `trueshot eval --write-manifest` draws the episodes and their noise.
  - The rows of the episodes go through the authors' class `MetaTrainer`, which computes prototypes, predictions and
    accuracies; only its step that draws noise is replaced.
  - With --tranfs, the parameters of a model of `trueshot train tranfs` are loaded into the authors' class
    `ProtoConvTransformer`, without its convolutional network, because the episodes consist of features.
  - The prototypes of some support sets are also compared number by number, with those that `trueshot fit` writes.

Exits with 1 if an accuracy differs by more than --tolerance. Methods that draw random numbers (ties between
neighbours, the initial weights of `linear`) run twice in the authors' program: the difference between the two runs
gives the standard error, and up to 4 standard errors are allowed. Exits with 1, too, if a prototype differs by more
than 1e-4 of its norm.

Train the models for some thousand steps: before that, the prototypes of an episode almost coincide, and rounding decides
about more queries. The interpreter that runs this script needs torch and numpy; other packages that the checkout imports
are not needed. 500 episodes with two models take 7 minutes on one idle core, with --linear 20.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Modules that a checkout must have. This script imports the first two.
MODULES = ("few_shot_utils", "models", "data_utils", "noise_utils", "mini_imagenet")
REPOSITORY = "https://github.com/facebookresearch/noisy_few_shot"
NOISE = ["--noise", "symmetric=0,20,40,60", "--noise", "paired=40"]
OUTLIERS = ["--noise", "outlier=20,40,60"]
# The defaults of --prototypes (episodes per setting) and --tolerance (percentage points).
PROTOTYPES, TOLERANCE = 3, 0.01
# The allowed difference of the accuracies of methods with random numbers, in standard errors.
STANDARD_ERRORS = 4
# The allowed difference of a prototype, relative to its norm.
PROTOTYPE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Method:
    """A method by its name in trueshot and by its options in the authors' program."""

    name: str
    aggregate: str = "mean"
    """The authors' way to compute a prototype."""
    compare: str = "proto"
    """The authors' way to classify queries."""
    random: bool = False
    """Whether the method draws random numbers."""
    model: Path | None = None
    """The file of a TraNFS model."""

    @property
    def spec(self) -> str:
        """The name on the command line of trueshot."""
        return self.name if self.model is None else f"tranfs:model={self.model}"

    @property
    def has_prototypes(self) -> bool:
        """Whether queries are compared with one prototype per class."""
        return self.compare == "proto"


METHODS = [
    Method("protonet"),
    Method("median", "median"),
    *(Method(f"absolute:T={t}", f"abs_{t}") for t in ("10", "25", "50")),
    *(Method(f"euclidean:T={t}", f"euclidean_{t}") for t in ("5", "10", "25")),
    *(Method(f"cosine:T={t}", f"cosine_{t}") for t in ("0.1", "0.2", "0.5")),
    Method("matching", compare="match"),
    Method("nearest:k=1", compare="nearest_1"),
    *(Method(f"nearest:k={k}", compare=f"nearest_{k}", random=True) for k in (3, 5)),
]
LINEAR = Method("linear", compare="lin_cls", random=True)


def checkout(text: str) -> Path:
    """An argument type: a folder with the authors' modules."""
    path = benchlib.existing_folder(text)
    for name in MODULES:
        if not (path / f"{name}.py").is_file():
            raise argparse.ArgumentTypeError(f"there is no {name}.py in '{text}'; give a checkout of {REPOSITORY}")
    return path


def not_negative(text: str) -> float:
    """An argument type: a number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 0")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("checkout", type=checkout, metavar="CHECKOUT", help="folder of the authors' program")
    parser.add_argument("--features", type=benchlib.existing_file, required=True, metavar="FILE",
                        help="embeddings to draw episodes from")
    parser.add_argument("--outliers", type=benchlib.existing_file, metavar="FILE",
                        help="embeddings of other classes for outlier noise [default: no outlier noise]")
    parser.add_argument("--tranfs", type=benchlib.existing_file, action="append", default=[], metavar="MODEL",
                        help="a model of `trueshot train tranfs` for these features; can be repeated")
    benchlib.add_out(parser, "authors-program.md")
    benchlib.add_trueshot(parser)
    parser.add_argument("-e", "--episodes", type=benchlib.positive, default=1000, metavar="N",
                        help="episodes per setting [default: %(default)s]")
    parser.add_argument("--linear", action="store_true",
                        help="also compare `linear`, which trains on every episode and takes most of the time")
    parser.add_argument("--prototypes", type=benchlib.positive, default=PROTOTYPES, metavar="N",
                        help="episodes whose prototypes are compared, in every setting [default: %(default)s]")
    parser.add_argument("--float64", action="store_true",
                        help="run the authors' program in float64, to see which differences come from rounding")
    parser.add_argument("--tolerance", type=not_negative, default=TOLERANCE, metavar="POINTS",
                        help="largest difference of accuracies in percentage points; with fewer than 134 episodes, a single "
                             "query is more than the default [default: %(default)s]")
    benchlib.add_threads(parser, default=1)
    arguments = parser.parse_args()
    names = [path.stem for path in arguments.tranfs]
    for name in names:
        if names.count(name) > 1:
            parser.error(f"--tranfs: two models are called '{name}'; rename one, because tables show these names")
    return arguments


# --- The authors' program -----------------------------------------------------------------------------


class Absent(types.ModuleType):
    """A module of placeholders, for packages that the checkout imports and a replay never calls."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return object


@contextlib.contextmanager
def without_packages() -> Iterator[None]:
    """Replaces learn2learn and torchvision, which load images and draw batches, by placeholders."""
    import torch

    names = ["learn2learn", "learn2learn.data", "learn2learn.data.transforms", "learn2learn.data.utils",
             "learn2learn.vision", "learn2learn.vision.datasets", "learn2learn.vision.models",
             "torchvision", "torchvision.transforms"]
    absent = {name: Absent(name) for name in names}
    for name, module in absent.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(absent[parent], last, module)
    absent["learn2learn.vision.models"].ConvBase = lambda **_: torch.nn.Identity()
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def import_authors(folder: Path):
    """The authors' modules `few_shot_utils` and `models`."""
    sys.path.insert(0, str(folder))
    try:
        with without_packages():
            return importlib.import_module("few_shot_utils"), importlib.import_module("models")
    except (ImportError, AttributeError) as problem:
        benchlib.fail(f"{folder} cannot be imported: {problem}; was it changed since {REPOSITORY} was published?")
    finally:
        sys.path.remove(str(folder))


def read_tensors(path: Path) -> tuple[dict, dict]:
    """The f32 tensors of a safetensors file, and its metadata."""
    import torch

    header, start = benchlib.read_header(path)
    data = bytearray(path.read_bytes()[start:])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            values = torch.frombuffer(data[begin:end], dtype=torch.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors, header.get("__metadata__", {})


def read_tranfs(path: Path) -> tuple[dict, dict, int]:
    """The tensors and the options of a TraNFS model, and the dimension of its features."""
    tensors, metadata = read_tensors(path)
    if metadata.get("kind") != "tranfs":
        benchlib.fail(f"{path} is not a model of `trueshot train tranfs`: its kind is {metadata.get('kind')!r}")
    config = json.loads(metadata["config"])
    options = config["options"]
    if options["feed_forward"] != options["width"]:
        benchlib.fail(f"{path} has {options['feed_forward']} hidden units for a width of {options['width']}; "
                      "in the authors' program the two are always equal")
    return tensors, options, config["dim"]


def transformer_state(tensors: dict, options: dict) -> dict:
    """The parameters of a TraNFS model by their names in the authors' class; linear layers are transposed there."""
    state = {"pos_embeddings.weight": tensors["positions"]}
    if options["class_tokens"] != "mean":
        state["cls_embeddings.weight"] = tensors["class_tokens"]
    linear = {"attention.out": "self_attn.out_proj", "feed_forward.in": "linear1", "feed_forward.out": "linear2"}
    for number in range(options["layers"]):
        ours, theirs = f"layer{number}.", f"encoder.layers.{number}."
        state[f"{theirs}self_attn.in_proj_weight"] = tensors[f"{ours}attention.in.weight"].T
        state[f"{theirs}self_attn.in_proj_bias"] = tensors[f"{ours}attention.in.bias"]
        for our_name, their_name in linear.items():
            state[f"{theirs}{their_name}.weight"] = tensors[f"{ours}{our_name}.weight"].T
            state[f"{theirs}{their_name}.bias"] = tensors[f"{ours}{our_name}.bias"]
        for norm in ("norm1", "norm2"):
            state[f"{theirs}{norm}.weight"] = tensors[f"{ours}{norm}.scale"]
            state[f"{theirs}{norm}.bias"] = tensors[f"{ours}{norm}.shift"]
    return state


class Authors:
    """The authors' program on rows of features."""

    def __init__(self, folder: Path, spec: dict, dim: int) -> None:
        self.utilities, self.models = import_authors(folder)
        self.ways, self.shots, self.queries, self.dim = spec["ways"], spec["shots"]["max"], spec["queries"], dim

        class Replay(self.utilities.MetaTrainer):
            """The authors' trainer for batches that already have noise."""

            def prepare_data(self, batch, *_others):
                """The authors' step that draws noise; here it changes nothing."""
                return batch

        self.trainer = Replay

    def network(self, method: Method):
        """The authors' model for a method, in evaluation mode."""
        import torch

        ways, shots = {"train": self.ways, "test": self.ways}, {"train": self.shots, "test": self.shots}
        if method.model is None:
            network = self.models.ProtoConvnet(ways, shots, agg_method=method.aggregate)
        else:
            tensors, options, dim = read_tranfs(method.model)
            if dim != self.dim:
                benchlib.fail(f"{method.model} is for features of {dim} dimensions; these have {self.dim}")
            if options["classes"] < self.ways:
                benchlib.fail(f"{method.model} is for up to {options['classes']} classes; episodes have {self.ways}")
            tokens = {"random": "rand_const", "learned": "cls_learn", "mean": "proto"}[options["class_tokens"]]
            positions = {"random": "rand_const", "learned": "pos_learn"}[options["positions"]]
            network = self.models.ProtoConvTransformer(
                {"train": options["classes"], "test": self.ways}, shots, torch.device("cpu"), ortho_proj=True,
                trans_layers=options["layers"], trans_d_model=options["width"], nhead=options["heads"],
                cls_type=tokens, pos_type=positions, output_from_cls=True,
            )
            # `load_state_dict` is strict: it fails if a parameter is left as it was initialised.
            network.transformer.load_state_dict(transformer_state(tensors, options))
            down = tensors["down.weight"].to(torch.get_default_dtype())
            up = tensors["up.weight"].to(down.dtype) if not options["tied"] else down
            network.proj_trans_in, network.proj_trans_out = torch.nn.Parameter(down), torch.nn.Parameter(up)
        # Rows are already features. `linear` reads their dimension here.
        network.convnet.encoder, network.convnet.conv_out_dims = torch.nn.Identity(), self.dim
        return network.eval()

    def query_counter(self, method: Method):
        """A function that takes a batch and returns the number of queries that the authors' program classifies correctly."""
        import torch

        options = argparse.Namespace(
            comp_method=method.compare, dist_metric="euclidean", logit_temperature=1.0, embed_proto_loss_weight=0.0,
            binary_outlier_loss_weight=0.0, clean_proto_loss_weight=0.0,
            test_way=self.ways, test_shot=self.shots, test_query=self.queries,
        )
        trainer = self.trainer(self.network(method), torch.device("cpu"), options)
        compare = trainer.nearest_neighbor if method.compare.startswith("nearest") else trainer.loss_acc

        def count_right(batch) -> int:
            """The number of correctly classified queries. `linear` trains, so it needs gradients."""
            with contextlib.nullcontext() if method.compare == "lin_cls" else torch.no_grad():
                accuracy = compare(batch)[1]["accuracy"]
            return round(float(accuracy) * self.ways * self.queries)

        return count_right

    def prototypes(self, method: Method, support):
        """The authors' prototypes `[ways, dim]` of a support set `[ways * shots, dim]`."""
        import torch

        with torch.no_grad():
            return self.network(method)(support, torch.ones(len(support), dtype=torch.bool))["support_prototypes"]


# --- Episodes -----------------------------------------------------------------------------------------


class Episodes:
    """The episodes of a manifest as batches for the authors' trainer."""

    def __init__(self, manifest: Path, features: Path, outliers: Path | None) -> None:
        import torch

        def read(path: Path):
            """The features of a file, in the precision of the authors' program."""
            return torch.from_numpy(benchlib.read_embeddings(path)[0]).to(torch.get_default_dtype())

        header, *self.episodes = benchlib.json_lines(manifest.read_text())
        self.spec, self.noises = header["spec"], header["noises"]
        self.features = read(features)
        self.outliers = read(outliers) if outliers else None

    def support(self, episode: dict, setting: int):
        """The rows of a support set under one noise setting, class by class: `[ways * shots, dim]`."""
        shots = self.spec["shots"]["max"]
        support = self.features[[row for rows in episode["support"] for row in rows]]
        # Noise replaces item `index` of class `given` by a row of class `truth`, or of the outliers (`truth` is -1).
        for given, index, row, truth in episode["replaced"][setting]:
            support[given * shots + index] = self.outliers[row] if truth < 0 else self.features[row]
        return support

    def batch(self, episode: dict, setting: int):
        """Rows, classes, masks and noise positions, as the authors' `prepare_data` returns them."""
        import numpy as np
        import torch

        support = self.support(episode, setting)
        queries = self.features[[row for rows in episode["queries"] for row in rows]]
        classes = torch.arange(self.spec["ways"])
        labels = torch.cat([classes.repeat_interleave(self.spec["shots"]["max"]),
                            classes.repeat_interleave(self.spec["queries"])])
        is_support = torch.arange(len(labels)) < len(support)
        masks = {"support": is_support, "query": ~is_support}
        return torch.cat([support, queries]), labels, masks, np.zeros(len(labels))


@dataclass
class Tally:
    """Correctly classified queries of one method under one noise setting, per episode."""

    right: list[int] = field(default_factory=list)
    """Counts of the first run."""
    again: list[int] = field(default_factory=list)
    """Counts of the second run, for methods that draw random numbers."""

    def row(self, queries: int) -> dict:
        """The accuracy in percent; for a method that ran twice, also the standard error of a difference of two runs."""
        row = {"authors": 100 * sum(self.right) / (queries * len(self.right)), "right": sum(self.right)}
        if self.again:
            # Differences of single episodes have the mean 0 and add up independently.
            squares = sum((a - b) ** 2 for a, b in zip(self.right, self.again))
            row["standard_error"] = 100 * math.sqrt(squares) / (queries * len(self.right))
        return row


def replay(authors: Authors, episodes: Episodes, methods: list[Method]) -> list[dict]:
    """The accuracies of the authors' program: one row per noise setting and method."""
    import torch

    torch.manual_seed(0)
    counters = {method: authors.query_counter(method) for method in methods}
    tallies = [{method: Tally() for method in methods} for _ in episodes.noises]
    for number, episode in enumerate(episodes.episodes):
        if number % 50 == 0:
            benchlib.progress(f"the authors' program: {number} of {len(episodes.episodes)} episodes")
        for setting, of_setting in enumerate(tallies):
            batch = episodes.batch(episode, setting)
            for method, tally in of_setting.items():
                tally.right.append(counters[method](batch))
                if method.random:
                    tally.again.append(counters[method](batch))
    queries = authors.ways * authors.queries
    return [{"method": method.name, **noise, **tally.row(queries)}
            for noise, of_setting in zip(episodes.noises, tallies) for method, tally in of_setting.items()]


def compare_prototypes(arguments: argparse.Namespace, authors: Authors, episodes: Episodes, methods: list[Method],
                       folder: Path) -> dict[str, float]:
    """By method: the largest |a - b| / |a| over prototypes a of the authors and b of `trueshot fit`, in the first
    --prototypes episodes of every setting."""
    import numpy as np

    ways, shots = authors.ways, authors.shots
    labels, names = np.arange(ways).repeat(shots), [f"class-{number}" for number in range(ways)]
    items = [f"item-{number}" for number in range(ways * shots)]
    support_file, classifier = folder / "support.safetensors", folder / "classifier.safetensors"
    largest = {method.name: 0.0 for method in methods if method.has_prototypes}
    for number, episode in enumerate(episodes.episodes[:arguments.prototypes]):
        benchlib.progress(f"prototypes: {number} of {min(arguments.prototypes, len(episodes.episodes))} episodes")
        for setting in range(len(episodes.noises)):
            support = episodes.support(episode, setting)
            rows = support.float().numpy()
            benchlib.write_embeddings(support_file, rows, labels, names, items, {"backbone": "none"})
            for method in methods:
                if not method.has_prototypes:
                    continue
                benchlib.output([arguments.trueshot, "fit", support_file, "--method", method.spec, "-o", classifier,
                                 "--threads", arguments.threads])
                ours = read_tensors(classifier)[0]["vectors"].double()
                theirs = authors.prototypes(method, support).double()
                relative = ((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max()
                # Unlike `max`, this keeps a NaN.
                largest[method.name] = float(np.maximum(largest[method.name], float(relative)))
    return largest


# --- trueshot -----------------------------------------------------------------------------------------


def evaluate(arguments: argparse.Namespace, methods: list[Method], *options: str | Path) -> dict:
    """The result of `trueshot eval`."""
    command = [arguments.trueshot, "eval", arguments.features, "--format", "json", "--threads", arguments.threads,
               "--device", "cpu", "--methods", ",".join(method.spec for method in methods), *options]
    if arguments.outliers:
        command += ["--outliers", arguments.outliers]
    return json.loads(benchlib.output(command))


def of_trueshot(arguments: argparse.Namespace, methods: list[Method], manifest: Path) -> tuple[dict, dict]:
    """The results of `trueshot eval` on the episodes of a manifest: the entry of each method by noise, level and method name,
    and the whole result."""
    benchlib.progress("trueshot eval")
    result = evaluate(arguments, methods, "--manifest", manifest)
    entries = {}
    for setting in result["settings"]:
        # Methods are in the given order; names of files are shortened in the result.
        for method, entry in zip(methods, setting["methods"], strict=True):
            entries[setting["noise"], setting["level"], method.name] = entry
    return entries, result


# --- The page -----------------------------------------------------------------------------------------


def allowed(row: dict, tolerance: float) -> float:
    """The largest allowed difference of a row, in percentage points."""
    return max(tolerance, STANDARD_ERRORS * row.get("standard_error", 0.0))


def failures(result: dict) -> list[str]:
    """The accuracies and prototypes that differ by more than allowed or are NaN, in words."""
    # `not ... <=` is also true for NaN.
    rows = [f"{row['method']}, {row['noise']} {100 * row['level']:g} %: {row['difference']:+.4f} points"
            for row in result["rows"] if not abs(row["difference"]) <= allowed(row, result["tolerance"])]
    return rows + [f"prototypes of {name}: {value:.1e}" for name, value in result["prototypes"].items()
                   if not value <= PROTOTYPE_TOLERANCE]


def worst(rows: list[dict]) -> float:
    """The largest absolute difference, in percentage points."""
    return max((abs(row["difference"]) for row in rows), default=0.0)


def summary(result: dict) -> str:
    """A table with one line per method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["method"] == method]
        changed = max(round(abs(row["difference"]) / 100 * result["queries"]) for row in rows)
        errors = [abs(row["difference"]) / row["standard_error"] for row in rows if row.get("standard_error")]
        prototypes = result["prototypes"].get(method)
        lines.append([f"`{method}`", f"{worst(rows):.4f}", f"{changed}", f"{max(errors):.1f}" if errors else "",
                      "" if prototypes is None else f"{prototypes:.1e}"])
    head = ["method", "largest difference, points", "the same in queries", "in standard errors",
            "prototypes, relative difference"]
    return benchlib.table(head, lines)


def all_rows(result: dict) -> str:
    """A table with one line per method and setting."""
    lines = [[f"`{row['method']}`", row["noise"], f"{100 * row['level']:g} %", f"{row['authors']:.3f}",
              f"{row['trueshot']:.3f}", f"{row['difference']:+.4f}"] for row in result["rows"]]
    return benchlib.table(["method", "noise", "level", "authors", "trueshot", "difference"], lines, left=2)


def listed(names: list[str]) -> str:
    """Names as words of a sentence: `a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


def models_paragraph(result: dict) -> str:
    """What is compared of TraNFS models; empty without models."""
    if not result["models"]:
        return ""
    return f"""The parameters of {listed(result['models'])}, written by `trueshot train tranfs` for these features, were loaded
into the authors' class. Rows of `tranfs` therefore compare the computation and not the training."""


def chance_paragraph(result: dict) -> str:
    """How methods with random numbers are compared; empty without such methods."""
    names = list(dict.fromkeys(row["method"] for row in result["rows"] if "standard_error" in row))
    if not names:
        return ""
    return f"""The two programs do not share the random numbers of {listed(names)}: ties between neighbours are broken at
random, and `linear` starts with random weights. The authors' program ran these methods twice. The standard error is that
of the difference between two such runs, and up to {STANDARD_ERRORS} standard errors are allowed. trueshot starts every setting
of an episode with the same random numbers, so differences in several settings are not independent."""


def page(result: dict) -> str:
    """The page for a result."""
    exact = [row for row in result["rows"] if "standard_error" not in row]
    files = ", ".join(f"`{name}` {digest[:12]}" for name, digest in result["files"].items())
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    data = f"`{result['features']}` ({result['backbone']})"
    if result["outliers"]:
        data += f", with outliers from `{result['outliers']}`"
    has_linear = any(row["method"] == LINEAR.name for row in result["rows"])
    problems = failures(result)
    outcome = f"**Beyond the tolerance: {'; '.join(problems)}.**" if problems else "All are within their tolerance."
    paragraphs = [f"""# The program of the paper's authors on the same episodes

```sh
git clone {REPOSITORY}
{result['command']}
```

The authors of the paper published their program. It draws its own episodes, so its accuracies differ from those of
trueshot by chance. Here it gets the episodes of trueshot: {result['episodes']:,} episodes per setting ({result['ways']}-way
{result['shots']}-shot, {result['queries_per_class']} queries per class, seed 0) of {data}. Prototypes, predictions and
accuracies in the column "authors" come from the authors' code, in float{64 if result['float64'] else 32}.""",
        models_paragraph(result),
        f"""**Without random numbers, the largest difference of {len(exact)} accuracies is {worst(exact):.4f} points,**
{round(worst(exact) / 100 * result['queries'])} of {result['queries']:,} queries. {outcome}""",
        summary(result),
        f"""The third column is the net difference of correctly classified queries in the setting where it is largest. The last
column is the largest |a − b| / |a| over prototypes a of the authors and b of trueshot, in the first
{result['prototype_episodes']} episodes of every setting. A query that is almost equally near to two prototypes may get another
class by rounding: trueshot computes distances from inner products in float32, the authors from differences.""",
        chance_paragraph(result),
        f"""Not compared: {'' if has_linear else '`linear` (option `--linear`), '}how noise is drawn
([the rules here](../episodes.md)), training, the detection of wrong labels, prototypes of random subsets and the cosine as
distance to prototypes (trueshot has neither), and methods that the authors' program does not have.""",
        f"""## All rows

Accuracy in percent.

{all_rows(result)}

{versions}, trueshot {result['trueshot_version']}. The authors' files, with the first digits of their SHA-256: {files}.""",
    ]
    return benchlib.wrapped("\n\n".join(filter(None, paragraphs)))


def command_line(arguments: argparse.Namespace) -> str:
    """The command without folders, as the page shows it."""
    words = ["python bench/measure/authors_program.py noisy_few_shot", f"--features {arguments.features.name}"]
    words += [f"--outliers {arguments.outliers.name}"] if arguments.outliers else []
    words += [f"--tranfs {path.name}" for path in arguments.tranfs]
    words += [f"--episodes {arguments.episodes}"]
    words += ["--linear"] if arguments.linear else []
    words += ["--float64"] if arguments.float64 else []
    words += [f"--prototypes {arguments.prototypes}"] if arguments.prototypes != PROTOTYPES else []
    words += [f"--tolerance {arguments.tolerance:g}"] if arguments.tolerance != TOLERANCE else []
    return " \\\n    ".join([*words, "--out docs/results/authors-program.md"])


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("numpy", "torch")
    import torch

    # The authors' transformer has the sequence axis first, for which PyTorch has no fast path, and warns for every
    # model.
    warnings.filterwarnings("ignore", message="enable_nested_tensor")
    torch.set_num_threads(arguments.threads)
    if arguments.float64:
        torch.set_default_dtype(torch.float64)
    models = [Method(f"tranfs:model={path.stem}", model=path) for path in arguments.tranfs]
    methods = [*METHODS, *([LINEAR] if arguments.linear else []), *models]
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "episodes.jsonl")
        noise = [*NOISE, *(OUTLIERS if arguments.outliers else [])]
        evaluate(arguments, METHODS[:1], "--write-manifest", manifest, "--episodes", str(arguments.episodes), *noise)
        ours, evaluation = of_trueshot(arguments, methods, manifest)
        episodes = Episodes(manifest, arguments.features, arguments.outliers)
        authors = Authors(arguments.checkout, episodes.spec, episodes.features.shape[1])
        rows = replay(authors, episodes, methods)
        prototypes = compare_prototypes(arguments, authors, episodes, methods, Path(folder))
    spec = episodes.spec
    queries = len(episodes.episodes) * spec["ways"] * spec["queries"]
    for row in rows:
        row["trueshot"] = ours[row["noise"], row["level"], row["method"]]["accuracy"]
        # In whole queries, because trueshot's accuracies are rounded to four decimals.
        row["difference"] = 100 * (round(row["trueshot"] * queries / 100) - row.pop("right")) / queries
    rows.sort(key=lambda row: [method.name for method in methods].index(row["method"]))
    result = {
        "command": command_line(arguments),
        "trueshot_version": benchlib.trueshot_version(arguments.trueshot),
        "versions": benchlib.package_versions(sys.executable, ["torch", "numpy"]),
        "files": {f"{name}.py": benchlib.sha256(arguments.checkout / f"{name}.py") for name in MODULES[:2]},
        "features": arguments.features.name, "backbone": evaluation["embeddings"].get("backbone"),
        "outliers": arguments.outliers.name if arguments.outliers else None,
        "models": [path.name for path in arguments.tranfs],
        "episodes": len(episodes.episodes), "ways": spec["ways"], "shots": spec["shots"]["max"],
        "queries_per_class": spec["queries"], "queries": queries,
        "float64": arguments.float64, "tolerance": arguments.tolerance,
        "prototype_episodes": min(arguments.prototypes, len(episodes.episodes)),
        "rows": rows, "prototypes": prototypes,
    }
    benchlib.publish(arguments.out, page(result), result)
    benchlib.progress(f"largest difference without random numbers: "
                      f"{worst([row for row in rows if 'standard_error' not in row]):.4f} points")
    if problems := failures(result):
        benchlib.fail("; ".join(problems))


if __name__ == "__main__":
    main()
