#!/usr/bin/env python3
"""Audits of support sets whose truth is known: Relabel, cosine weights and cleanlab on the same sets.

audit.py --cifar-fs TEST VAL --cub TEST OUTLIERS --omniglot TEST VAL [--sets 1000] [--cleanlab-sets 200] [--peer cleanlab_peer.py] -o audit.md

Files of embeddings: the classes to draw sets from, and classes outliers come from. Runs the example `audit_quality` of the
library (built by `cargo build --release --examples`) and, where --peer is given, cleanlab on the first of the same sets (its
Python needs cleanlab, scikit-learn and numpy; --python). Writes a page and, beside it, the figures as JSON.
"""
import argparse, json, os, subprocess, tempfile

NOISES = ["symmetric=20,40", "paired=40", "outlier=40"]


def quality(program, files, shots, sets, noises, folder=None):
    command = [program, *files, "--shots", str(shots), "--sets", str(sets)]
    for noise in noises:
        command += ["--noise", noise]
    if folder:
        command += ["--write", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def cleanlab(python, peer, folder):
    """The peer wants one .npz a setting."""
    found = []
    for name in sorted(os.listdir(folder), key=lambda name: os.path.getmtime(os.path.join(folder, name))):
        place = os.path.join(folder, name)
        pack = f"import numpy as n; n.savez({place + '.npz'!r}, **{{k: n.load({place!r} + '/' + k + '.npy') for k in ('x', 'given', 'wrong')}})"
        subprocess.run([python, "-c", pack], check=True)
        done = subprocess.run([python, peer, place + ".npz"], check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for data in ("cifar-fs", "cub", "omniglot"):
        parser.add_argument(f"--{data}", nargs=2, metavar=("TEST", "OUTLIERS"))
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--cleanlab-sets", type=int, default=200)
    parser.add_argument("--program", default="target/release/examples/audit_quality")
    parser.add_argument("--peer")
    parser.add_argument("--python", default="python3")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    rows = []
    for data in ("cifar_fs", "cub", "omniglot"):
        files = getattr(options, data)
        if not files:
            continue
        # Twenty drawings a class: ten shots, as many for noise and ten queries do not fit.
        for shots in (5, 10) if data != "omniglot" else (5,):
            found = quality(options.program, files, shots, options.sets, NOISES)
            peers = [None] * len(found)
            if options.peer:
                with tempfile.TemporaryDirectory() as folder:
                    quality(options.program, files, shots, options.cleanlab_sets, NOISES, folder)
                    peers = cleanlab(options.python, options.peer, folder)
            rows += [dict(row, data=data, cleanlab=peer) for row, peer in zip(found, peers)]
        if data != "omniglot":
            rows += [dict(row, data=data, cleanlab=None) for row in quality(options.program, files, 3, options.sets, ["symmetric=33"])]
            rows += [dict(row, data=data, cleanlab=None) for row in quality(options.program, files[:1], 10, options.sets, ["symmetric=0"])]
    write(options, rows)


def write(options, rows):
    with open(os.path.splitext(options.output)[0] + ".json", "w") as file:
        json.dump(rows, file, indent=1)
    pair = lambda found: f"{found['auroc']:.4f} / {found['average_precision']:.3f}" if found else "-"
    lines = [
        "| data | shots | noise | Relabel | cosine | cleanlab | ECE | decided | right | relabelled right | answers right | their ECE | unknown |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        relabelled = row["calls"].get('"relabel"', [0, 0])
        share = f"{100 * relabelled[1] / relabelled[0]:.1f} % of {relabelled[0]}" if relabelled[0] else "-"
        error = f"{row['relabel']['calibration_error']:.4f}" if row["relabel"] else "-"
        lines.append(
            f"| {row['data']} | {row['shots']} | {row['noise']} | {pair(row['relabel'])} | {pair(row['cosine'])} | {pair(row['cleanlab'])} | {error} "
            f"| {100 * row['decided']:.1f} % | {100 * row['decided_right']:.1f} % | {share} | {100 * row['accuracy']:.1f} % "
            f"| {row['answer_calibration_error']:.3f} | {row['unknown_auroc_within_sets']:.4f} |"
        )
    with open(options.output, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
