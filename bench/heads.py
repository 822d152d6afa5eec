#!/usr/bin/env python3
"""The learned heads on test classes, at full length, as a page for the docs.

    python3 bench/heads.py --features DIR --models DIR --out docs/results/heads.md

DIR of features: mini-test, out-test (the Conv4 reference backbone, `trueshot embed`), effnet-cifarfs-test and
effnet-cub-test (`bench/efficientnet_features.py`), all .safetensors. DIR of models: t3-sym, t3-paired, t3-out, t2-sym,
t2-paired, t2-out (TraNFS) and r-one (Relabel for that backbone); the general Relabel head is the built-in one.
docs/results/heads-commands.md has the commands that made them.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import report

MAIN = ["--noise", "symmetric=0,20,40,60", "--noise", "paired=20,40", "--noise", "outlier=20,40,60"]
TRANFS = {"symmetric": "t3-sym", "paired": "t3-paired", "outlier": "t3-out"}
CALLED = {"t3-sym": "TraNFS-3, symmetric", "t3-paired": "TraNFS-3, paired", "t3-out": "TraNFS-3, outlier",
          "t2-sym": "TraNFS-2, symmetric", "t2-paired": "TraNFS-2, paired", "t2-out": "TraNFS-2, outlier",
          "r-one": "Relabel, one backbone", "relabel": "Relabel, general"}


class Runs:
    """`trueshot eval`, and what it took."""

    def __init__(self, binary: Path, episodes: int) -> None:
        self.binary, self.episodes, self.seconds = binary, episodes, 0.0

    def evaluate(self, features: Path, methods: list[str], *arguments: str) -> list[dict]:
        """The settings of one run."""
        command = [str(self.binary), "eval", str(features), "--methods", ",".join(methods),
                   "--episodes", str(self.episodes), "--format", "json", *arguments]
        print(" ".join(["trueshot", *command[1:]]), file=sys.stderr, flush=True)
        start = time.time()
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        self.seconds += time.time() - start
        return json.loads(ran.stdout)["settings"]


def name_of(label: str) -> str:
    """A method as the page calls it."""
    stem = label.rpartition("/")[2].removesuffix(".safetensors").rpartition("=")[2]
    return CALLED.get(stem, stem)


def setting_name(setting: dict) -> str:
    level = round(100 * setting["level"])
    return "clean" if level == 0 else f"{setting['noise']} {level} %"


def accuracies(settings: list[dict]) -> str:
    """A table of settings against methods."""
    methods = [name_of(method["method"]) for method in settings[0]["methods"]]
    rows = [[setting_name(s), *(f"{m['accuracy']:.2f} ±{m['ci95']:.2f}" for m in s["methods"])] for s in settings]
    return report.table(["", *methods], rows)


def against(settings: list[dict], first: str, second: str) -> dict:
    """The paired difference of two methods, by setting."""
    found = {}
    for setting in settings:
        for pair in setting["significance"]:
            ends = (name_of(pair["method"]), name_of(pair["against"]))
            if set(ends) == {first, second}:
                sign = 1 if ends[0] == first else -1
                found[setting_name(setting)] = (sign * pair["difference"], pair["ci95"])
    return found


def miniimagenet(runs: Runs, features: Path, models: Path) -> list[str]:
    files = {stem: f"{kind}:model={models / stem}.safetensors" for kind, stems in
             (("tranfs", ["t3-sym", "t3-paired", "t3-out", "t2-sym", "t2-paired", "t2-out"]), ("relabel", ["r-one"]))
             for stem in stems if (models / f"{stem}.safetensors").is_file()}
    methods = ["oracle", "protonet", "median", *files.values(), "relabel"]
    outliers = ["--outliers", str(features / "out-test.safetensors")]
    main = runs.evaluate(features / "mini-test.safetensors", methods, *MAIN, *outliers)
    lines = ["## miniImageNet, Conv4, 5-way 5-shot\n", accuracies(main), "",
             "Relabel for one backbone less the TraNFS trained for that noise, on the same episodes:\n"]
    rows = []
    for kind, stem in TRANFS.items():
        for name, (mean, interval) in against(main, CALLED["r-one"], CALLED[stem]).items():
            if name.startswith(kind):
                rows.append([name, f"{mean:+.2f} ±{interval:.2f}"])
    lines += [report.table(["", "difference"], rows), "", "Finding wrong labels, AUROC:\n"]
    detecting = [[setting_name(s), *(f"{m['detection']['auroc']:.3f}" if "detection" in m else "-" for m in s["methods"])]
                 for s in main if s["level"] > 0]
    lines += [report.table(["", *(name_of(m["method"]) for m in main[0]["methods"])], detecting), ""]
    few = ["oracle", "protonet", *(files[s] for s in ("r-one",) if s in files), "relabel"]
    three = runs.evaluate(features / "mini-test.safetensors", few, "--shots", "3", "--noise", "symmetric=33")
    ten = runs.evaluate(features / "mini-test.safetensors", few, "--shots", "10", "--noise", "symmetric=0,40,60",
                        "--noise", "paired=40", "--noise", "outlier=40", *outliers)
    lines += ["## miniImageNet, 3 and 10 shots\n", "3 shots:\n", accuracies(three), "", "10 shots:\n", accuracies(ten), ""]
    return lines


def unseen(runs: Runs, features: Path) -> list[str]:
    """The general head on embeddings of a backbone and classes it may not have met."""
    lines = []
    methods = ["oracle", "protonet", "median", "relabel"]
    for stem, title in (("effnet-cifarfs-test", "CIFAR-FS"), ("effnet-cub-test", "CUB")):
        file = features / f"{stem}.safetensors"
        lines.append(f"## {title}, EfficientNet-Lite0\n")
        noise = ["--noise", "symmetric=0,20,40", "--noise", "paired=40"]
        for shots in (5, 10):
            settings = runs.evaluate(file, methods, "--shots", str(shots), *noise)
            lines += [f"5-way {shots}-shot:\n", accuracies(settings), ""]
        rows = []
        for ways, shots in ((5, 1), (5, 2), (5, 3), (5, 12), (5, 15), (2, 1), (2, 5), (10, 5), (20, 1), (20, 2), (20, 5)):
            queries = "10" if shots > 10 else "15"
            shape = ["--ways", str(ways), "--shots", str(shots), "--queries", queries]
            clean = runs.evaluate(file, ["protonet", "relabel"], *shape, "--noise", "symmetric=0")[0]["methods"]
            difference = clean[1]["difference"]
            rows.append([f"{ways}-way {shots}-shot", f"{clean[0]['accuracy']:.2f}", f"{clean[1]['accuracy']:.2f}",
                         f"{difference['mean']:+.2f} ±{difference['ci95']:.2f}"])
        lines += ["Other numbers of classes and shots, no noise:\n",
                  report.table(["", "protonet", "Relabel, general", "difference"], rows), ""]
        rows = []
        for ways, shots in ((2, 3), (2, 5), (2, 15), (5, 3), (5, 15), (20, 3), (20, 5), (20, 10)):
            shape = ["--ways", str(ways), "--shots", str(shots), "--queries", "10"]
            noises = [f"{kind}={level}" for kind, level in WITH_NOISE if possible(level, shots)]
            noise = [argument for noise in noises for argument in ("--noise", noise)]
            settings = runs.evaluate(file, ["protonet", "relabel"], *shape, *noise)
            cells = {setting_name(s): s["methods"][1]["difference"] for s in settings}
            shown = [f"{cells[n]['mean']:+.2f} ±{cells[n]['ci95']:.2f}" if (n := f"{kind} {level} %") in cells else "-"
                     for kind, level in WITH_NOISE]
            rows.append([f"{ways}-way {shots}-shot", *shown])
        lines += ["The same with noise, Relabel less ProtoNet on the same episodes:\n",
                  report.table(["", *(f"{kind} {level} %" for kind, level in WITH_NOISE)], rows), ""]
    return lines


WITH_NOISE = [("symmetric", 20), ("symmetric", 40), ("paired", 20), ("paired", 40)]


def possible(level: int, shots: int) -> bool:
    """Whether some of a class can be wrong, and less than half."""
    return 0 < 2 * round(level * shots / 100) < shots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trueshot", type=Path, default=Path("target/release/trueshot"), metavar="FILE")
    parser.add_argument("--features", type=Path, required=True, metavar="DIR")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--unseen-episodes", type=int, default=2_000, help="for the general head elsewhere")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    full, short = Runs(arguments.trueshot, arguments.episodes), Runs(arguments.trueshot, arguments.unseen_episodes)
    lines = [f"""# The learned heads

Accuracy in percent with its 95 % interval. miniImageNet: {arguments.episodes:,} episodes from the 20 test classes, features
of the reference Conv4 ([how the heads were trained](heads-commands.md)); CIFAR-FS and CUB: {arguments.unseen_episodes:,} episodes
from test classes that no training saw. Made with `bench/heads.py`, seed 0.

Two cautions. The heads of this page were chosen by validation classes alone, but what they are trained on (much paired
noise, augmented outliers) was settled after looking at earlier heads on test classes
([which](heads-commands.md#what-was-tried-before)). And the general head has seen EfficientNet-Lite0 features of the *training*
classes of CIFAR-FS and CUB, so those tables show unseen classes, not an unseen backbone; which pictures stand for the
test classes was settled by what gave ProtoNet the accuracy an independent program reported.
"""]
    lines += miniimagenet(full, arguments.features, arguments.models)
    lines += unseen(short, arguments.features)
    lines.append(f"All evaluations together took {(full.seconds + short.seconds) / 60:.1f} minutes.\n")
    arguments.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
