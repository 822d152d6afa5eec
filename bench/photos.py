#!/usr/bin/env python3
"""Exchanges labels in a folder of photos and counts what `trueshot audit` finds.

photos.py FOLDER [--trueshot PROGRAM] [--draws 1000] [--wrong 3]

The photos are embedded once. In every draw as many of each class are exchanged with photos of other classes, and the
embeddings with these labels are audited. Prints one JSON object: the share of wrong labels that are suspects of the audit
(to relabel, of none of the classes, or undecided but probably wrong: what `--check` answers to), the share of right ones that
are, the share of wrong ones with a verdict, and the share of suggestions that are right. Needs numpy.
"""
import argparse, json, os, random, struct, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy


def embedded(program, folder, place):
    path = os.path.join(place, "photos.safetensors")
    subprocess.run([program, "embed", folder, "-o", path], check=True, stderr=subprocess.DEVNULL)
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    types = {"F32": numpy.float32, "F16": numpy.float16, "I64": numpy.int64}
    def tensor(name):
        start, end = header[name]["data_offsets"]
        return numpy.frombuffer(data[start:end], types[header[name]["dtype"]]).reshape(header[name]["shape"])
    return tensor("features").astype(numpy.float32), tensor("labels").copy()


def exchanged(truth, wrong, seed):
    """Labels of which so many of every class have changed places, none staying in its class."""
    draw = random.Random(seed)
    chosen = [i for c in sorted(set(truth)) for i in draw.sample([j for j, t in enumerate(truth) if t == c], wrong)]
    while True:
        moved = chosen[:]
        draw.shuffle(moved)
        if all(truth[a] != truth[b] for a, b in zip(chosen, moved)):
            given = list(truth)
            for a, b in zip(chosen, moved):
                given[a] = truth[b]
            return given


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--trueshot", default="target/release/trueshot")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--wrong", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        features, truth = embedded(options.trueshot, options.folder, place)
        truth = [int(label) for label in truth]

        def look(seed):
            given = exchanged(truth, options.wrong, seed)
            path = os.path.join(place, f"{seed}.npz")
            numpy.savez(path, x=features, y=numpy.array(given))
            done = subprocess.run([options.trueshot, "audit", path, "--format", "json", "--threads", "1"], capture_output=True, text=True)
            os.remove(path)
            items = json.loads(done.stdout)["items"]
            counts = dict(wrong=0, found=0, right=0, flagged=0, suggested=0, suggested_right=0, decided=0, unsure=0)
            for item, t, g in zip(items, truth, given):
                decided = item["verdict"] in ("relabel", "outlier")
                flagged = decided or (item["verdict"] == "unsure" and item["p_wrong"] >= 0.5)
                counts["wrong" if t != g else "right"] += 1
                counts["found" if t != g else "flagged"] += flagged
                counts["decided"] += decided and t != g
                counts["unsure"] += item["verdict"] == "unsure"
                if item["suggested"] is not None:
                    counts["suggested"] += 1
                    counts["suggested_right"] += item["suggested"] == str(t)
            return counts

        with ThreadPoolExecutor(2) as pool:
            total = {}
            for counts in pool.map(look, range(options.draws)):
                for key, count in counts.items():
                    total[key] = total.get(key, 0) + count
    shares = {
        "found": total["found"] / total["wrong"],
        "decided": total["decided"] / total["wrong"],
        "flagged": total["flagged"] / total["right"],
        "suggestions_right": total["suggested_right"] / max(1, total["suggested"]),
    }
    json.dump({"draws": options.draws, "counts": total, **shares}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
