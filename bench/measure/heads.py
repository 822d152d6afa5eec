#!/usr/bin/env python3
"""Evaluate TraNFS and Relabel on test classes, and write the page on the learned heads.

    python bench/measure/heads.py --features DIR --models DIR --out docs/results/heads.md

The folder of features holds these embeddings (.safetensors):
  mini-test                              test classes of miniImageNet, made by `trueshot embed` with the reference Conv4
  out-test                               images of other classes for outlier noise on miniImageNet, made like mini-test
  effnet-cifarfs-test, effnet-cub-test   test classes of CIFAR-FS and CUB, made by bench/peers/onnxruntime_features.py

The folder of models holds these models (.safetensors); those that are missing are left out:
  t2-sym, t2-paired, t2-out   TraNFS with two layers, trained for symmetric, paired and outlier noise
  t3-sym, t3-paired, t3-out   the same with three layers
  r-one                       Relabel for the backbone of mini-test

The general Relabel model is the built-in one. docs/results/heads-commands.md has the commands that made the files. Needs no
packages. Takes about 40 minutes on two cores.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# The embeddings in --features.
FEATURES = ("mini-test", "out-test", "effnet-cifarfs-test", "effnet-cub-test")
# The noise settings on miniImageNet with 5 shots, as options of `trueshot eval`.
MAIN = ["--noise", "symmetric=0,20,40,60", "--noise", "paired=20,40", "--noise", "outlier=20,40,60"]
# By type of noise: the TraNFS model that Relabel for one backbone is compared with.
TRANFS = {"symmetric": "t3-sym", "paired": "t3-paired", "outlier": "t3-out"}
# Names of models on the page, by the names of their files; "relabel" is the built-in model.
TITLES = {"t3-sym": "TraNFS-3, symmetric", "t3-paired": "TraNFS-3, paired", "t3-out": "TraNFS-3, outlier",
          "t2-sym": "TraNFS-2, symmetric", "t2-paired": "TraNFS-2, paired", "t2-out": "TraNFS-2, outlier",
          "r-one": "Relabel, one backbone", "relabel": "Relabel, general"}
# Types of noise and percentages of wrong labels in the table of other numbers of classes and shots.
NOISES = [("symmetric", 20), ("symmetric", 40), ("paired", 20), ("paired", 40)]


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--features", type=benchlib.existing_folder, required=True, metavar="DIR",
                        help="folder with the embeddings")
    parser.add_argument("--models", type=benchlib.existing_folder, required=True, metavar="DIR",
                        help="folder with the trained models")
    benchlib.add_out(parser, "heads.md", json_too=False)
    benchlib.add_trueshot(parser)
    parser.add_argument("-e", "--episodes", type=benchlib.positive, default=10_000, metavar="N",
                        help="episodes per setting on miniImageNet [default: %(default)s]")
    parser.add_argument("--unseen-episodes", type=benchlib.positive, default=2_000, metavar="N",
                        help="episodes per setting on CIFAR-FS and CUB [default: %(default)s]")
    arguments = parser.parse_args()
    for name in FEATURES:
        if not (arguments.features / f"{name}.safetensors").is_file():
            parser.error(f"--features: there is no {name}.safetensors in '{arguments.features}'")
    return arguments


class Runs:
    """Runs `trueshot eval` with one number of episodes; `seconds` is the time of all runs so far."""

    def __init__(self, program: Path, episodes: int) -> None:
        self.program, self.episodes, self.seconds = program, episodes, 0.0

    def evaluate(self, features: Path, methods: list[str], *options: str) -> list[dict]:
        """The entries `settings` of the JSON of an evaluation, one per noise setting."""
        command = [str(self.program), "eval", str(features), "--methods", ",".join(methods),
                   "--episodes", str(self.episodes), "--format", "json", *options]
        benchlib.progress(" ".join(["trueshot", *command[1:]]))
        begin = time.perf_counter()
        settings = json.loads(benchlib.output(command))["settings"]
        self.seconds += time.perf_counter() - begin
        return settings


def title(label: str) -> str:
    """The name on the page of a method with this label in JSON, such as "relabel:model=models/r-one.safetensors"."""
    stem = label.rpartition("/")[2].removesuffix(".safetensors").rpartition("=")[2]
    return TITLES.get(stem, stem)


def setting_name(setting: dict) -> str:
    """The noise type and level of a setting, such as "paired 40 %"."""
    level = round(100 * setting["level"])
    return "clean" if level == 0 else f"{setting['noise']} {level} %"


def accuracies(settings: list[dict]) -> str:
    """A table with one row per setting and one column per method."""
    methods = [title(method["method"]) for method in settings[0]["methods"]]
    rows = [[setting_name(setting), *(f"{method['accuracy']:.2f} ±{method['ci95']:.2f}" for method in setting["methods"])]
            for setting in settings]
    return benchlib.table(["", *methods], rows)


def paired_differences(settings: list[dict], first: str, second: str) -> dict[str, tuple[float, float]]:
    """The accuracy of method `first` minus that of `second` and its 95 % interval, by setting."""
    differences = {}
    for setting in settings:
        for pair in setting["significance"]:
            compared = (title(pair["method"]), title(pair["against"]))
            if set(compared) == {first, second}:
                # The pair may be listed in the other order.
                sign = 1 if compared[0] == first else -1
                differences[setting_name(setting)] = (sign * pair["difference"], pair["ci95"])
    return differences


def miniimagenet(runs: Runs, features: Path, models: Path) -> list[str]:
    """The sections of the page on miniImageNet."""
    kinds = {stem: "relabel" if stem == "r-one" else "tranfs" for stem in TITLES if stem != "relabel"}
    files = {stem: f"{kind}:model={models / stem}.safetensors" for stem, kind in kinds.items()
             if (models / f"{stem}.safetensors").is_file()}
    methods = ["oracle", "protonet", "median", *files.values(), "relabel"]
    test, outliers = features / "mini-test.safetensors", ["--outliers", str(features / "out-test.safetensors")]
    main = runs.evaluate(test, methods, *MAIN, *outliers)
    differences = []
    for kind, stem in TRANFS.items():
        for name, (mean, interval) in paired_differences(main, TITLES["r-one"], TITLES[stem]).items():
            if name.startswith(kind):
                differences.append([name, f"{mean:+.2f} ±{interval:.2f}"])
    detection = [
        [setting_name(setting), *(f"{method['detection']['auroc']:.3f}" if "detection" in method else "-"
                                  for method in setting["methods"])]
        for setting in main if setting["level"] > 0
    ]
    # Without the TraNFS models; with Relabel for one backbone if there is a model.
    few = ["oracle", "protonet", *(files[stem] for stem in ("r-one",) if stem in files), "relabel"]
    three = runs.evaluate(test, few, "--shots", "3", "--noise", "symmetric=33")
    ten = runs.evaluate(test, few, "--shots", "10", "--noise", "symmetric=0,40,60", "--noise", "paired=40",
                        "--noise", "outlier=40", *outliers)
    return [
        "## miniImageNet, Conv4, 5-way 5-shot\n", accuracies(main), "",
        "Relabel for one backbone minus the TraNFS trained for that noise, on the same episodes:\n",
        benchlib.table(["", "difference"], differences), "",
        "AUROC of finding wrong labels:\n",
        benchlib.table(["", *(title(method["method"]) for method in main[0]["methods"])], detection), "",
        "## miniImageNet, 3 and 10 shots\n", "3 shots:\n", accuracies(three), "", "10 shots:\n", accuracies(ten), "",
    ]


def possible(level: int, shots: int) -> bool:
    """Whether with `level` percent noise at least one label per class is wrong, and fewer than half."""
    return 0 < 2 * round(level * shots / 100) < shots


def unseen(runs: Runs, features: Path) -> list[str]:
    """The sections of the page on the general head: data sets whose test classes were not used in training."""
    lines = []
    for stem, data in (("effnet-cifarfs-test", "CIFAR-FS"), ("effnet-cub-test", "CUB")):
        file = features / f"{stem}.safetensors"
        lines.append(f"## {data}, EfficientNet-Lite0\n")
        for shots in (5, 10):
            settings = runs.evaluate(file, ["oracle", "protonet", "median", "relabel"], "--shots", str(shots),
                                     "--noise", "symmetric=0,20,40", "--noise", "paired=40")
            lines += [f"5-way {shots}-shot:\n", accuracies(settings), ""]
        lines += ["Other numbers of classes and shots, no noise:\n", clean_shapes(runs, file), "",
                  "The same with noise, Relabel minus ProtoNet on the same episodes:\n", noisy_shapes(runs, file), ""]
    return lines


def clean_shapes(runs: Runs, file: Path) -> str:
    """ProtoNet and Relabel without noise, for several numbers of ways and shots."""
    rows = []
    # An episode draws `shots` support items, `shots` more for noise, and the queries. CUB has 40 images per class, which is
    # enough for 15 + 15 + 10.
    for ways, shots in ((5, 1), (5, 2), (5, 3), (5, 12), (5, 15), (2, 1), (2, 5), (10, 5), (20, 1), (20, 2), (20, 5)):
        shape = ["--ways", str(ways), "--shots", str(shots), "--queries", "10" if shots > 10 else "15"]
        clean = runs.evaluate(file, ["protonet", "relabel"], *shape, "--noise", "symmetric=0")[0]["methods"]
        difference = clean[1]["difference"]
        rows.append([f"{ways}-way {shots}-shot", f"{clean[0]['accuracy']:.2f}", f"{clean[1]['accuracy']:.2f}",
                     f"{difference['mean']:+.2f} ±{difference['ci95']:.2f}"])
    return benchlib.table(["", "protonet", "Relabel, general", "difference"], rows)


def noisy_shapes(runs: Runs, file: Path) -> str:
    """Relabel minus ProtoNet with noise, for several numbers of ways and shots."""
    rows, names = [], [f"{kind} {level} %" for kind, level in NOISES]
    for ways, shots in ((2, 3), (2, 5), (2, 15), (5, 3), (5, 15), (20, 3), (20, 5), (20, 10)):
        shape = ["--ways", str(ways), "--shots", str(shots), "--queries", "10"]
        noise = [option for kind, level in NOISES if possible(level, shots) for option in ("--noise", f"{kind}={level}")]
        settings = runs.evaluate(file, ["protonet", "relabel"], *shape, *noise)
        cells = {setting_name(setting): setting["methods"][1]["difference"] for setting in settings}
        shown = [f"{cells[name]['mean']:+.2f} ±{cells[name]['ci95']:.2f}" if name in cells else "-" for name in names]
        rows.append([f"{ways}-way {shots}-shot", *shown])
    table = benchlib.table(["", *names], rows)
    return f"{table}\n\nWith 3 shots, 20 % and 40 % are both one wrong label per class (33 %)."


def main() -> None:
    arguments = parse_arguments()
    full, short = Runs(arguments.trueshot, arguments.episodes), Runs(arguments.trueshot, arguments.unseen_episodes)
    lines = [f"""# The learned heads

Accuracy in percent with its 95 % interval. miniImageNet: {arguments.episodes:,} episodes from the 20 test classes, with
features of the reference Conv4 ([how the heads were trained](heads-commands.md)); CIFAR-FS and CUB:
{arguments.unseen_episodes:,} episodes from test classes that were not used in training. Seed 0.

```sh
python bench/measure/heads.py --features DIR --models DIR --out docs/results/heads.md
```

Two cautions. The heads of this page were chosen on validation classes alone, but what they are trained
on (much paired noise, augmented outliers) was decided after looking at earlier heads on test classes
([which](heads-commands.md#what-was-tried-before)). And the general head was trained on
EfficientNet-Lite0 features of the *training* classes of CIFAR-FS and CUB, so those tables show unseen
classes, not an unseen backbone; the images of the test classes were chosen so that ProtoNet reaches the
accuracy that an independent program reported.
"""]
    lines += miniimagenet(full, arguments.features, arguments.models)
    lines += unseen(short, arguments.features)
    lines.append(f"All evaluations together took {(full.seconds + short.seconds) / 60:.1f} minutes.\n")
    benchlib.publish(arguments.out, benchlib.wrapped("\n".join(lines)))


if __name__ == "__main__":
    main()
