#!/usr/bin/env python3
"""Add copies of photos and spoiled photos to collections, audit them, and count what is found.

    python bench/measure/duplicates.py cub=CUB flowers=FLOWERS --out docs/results/duplicates.md

Every argument is NAME=FOLDER, a folder of class folders of JPEG files. What is counted in each of these collections:

  1. False pairs. Up to --per-class photos per class are audited as they are. These collections have no known copies, so
     every reported pair is a false one, unless two photos show the same scene. Photos that are reported as poor are
     counted too.
  2. Copies that are found. --copies photos get a copy of each kind, half of them in their own class and half in another
     one. The pairs are found by the images, and by the embeddings of the images alone.
  3. Poor images that are found. Copies that were blurred, darkened, reduced to 24 pixels or truncated, and blank images,
     are added and counted in the same way.

Needs pillow. Takes about 15 minutes for three data sets on two cores.
"""
from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Kinds of copies, as the page describes them; `copy_of` makes them.
COPIES = {
    "half": "half as wide and high",
    "larger": "1.5 times as wide and high",
    "quality": "JPEG quality 50",
    "crop5": "5 % cropped on every side",
    "crop10": "10 % cropped on every side",
    "side10": "10 % cropped on one side",
    "mixed": "0 to 8 % cropped on every side, 60 % as wide and high, JPEG quality 50",
}
# Kinds of spoiled photos: the problem that an audit should report, and the description on the page. `copy_of` makes them.
SPOILED = {
    "blur1": ("blurred", "blurred, sigma 0.5 % of the longer side"),
    "blur2": ("blurred", "blurred, sigma 1 %"),
    "blur4": ("blurred", "blurred, sigma 2 %"),
    "dark": ("dark", "10 % as bright"),
    "blank": ("blank", "one colour"),
    "tiny": ("tiny", "24 pixels wide"),
    "truncated": ("unreadable", "first half of the file"),
}


# The problems of an image that an audit can report.
PROBLEMS = ("blurred", "dark", "blank", "tiny", "unreadable")


def named_folder(text: str) -> tuple[str, Path]:
    """An argument type: NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FOLDER")
    return name, benchlib.existing_folder(folder)


def named_count(text: str) -> tuple[str, int]:
    """An argument type: NAME=N."""
    name, _, count = text.partition("=")
    if not name or not count.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=N")
    return name, int(count)


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("photos", type=named_folder, nargs="+", metavar="NAME=FOLDER", help="a folder of class folders")
    parser.add_argument("--per-class", type=benchlib.positive, default=60, metavar="N",
                        help="photos per class [default: %(default)s]")
    parser.add_argument("--copies", type=benchlib.positive, default=150, metavar="N",
                        help="copies of each kind [default: %(default)s]")
    parser.add_argument("--same", type=named_count, nargs="*", default=[], metavar="NAME=N",
                        help="pairs of a collection without copies that show the same subject, judged by eye after a first "
                             "run [default: none]")
    benchlib.add_out(parser, "duplicates.md")
    benchlib.add_trueshot(parser)
    return parser.parse_args()


def sample(folder: Path, per_class: int, draw: random.Random) -> list[Path]:
    """Up to `per_class` photos of every class folder, chosen at random."""
    chosen = []
    for class_folder in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in class_folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
        draw.shuffle(files)
        chosen += files[:per_class]
    if len({photo.parent for photo in chosen}) < 2:
        benchlib.fail(f"{folder}: needs at least two class folders with .jpg files")
    return chosen


def cropped(image, left: float, top: float, right: float, bottom: float):
    """The image without these shares of its width and height on each side."""
    width, height = image.size
    return image.crop((round(width * left), round(height * top), round(width * (1 - right)), round(height * (1 - bottom))))


def copy_of(image, kind: str, draw: random.Random):
    """A copy of the given kind, and the JPEG quality to save it with."""
    from PIL import Image, ImageFilter

    width, height = image.size
    if kind == "half":
        return image.resize((width // 2, height // 2), Image.Resampling.LANCZOS), 90
    if kind == "larger":
        return image.resize((width * 3 // 2, height * 3 // 2), Image.Resampling.BICUBIC), 90
    if kind == "quality":
        return image, 50
    if kind in ("crop5", "crop10"):
        share = int(kind[4:]) / 100
        return cropped(image, share, share, share, share), 90
    if kind == "side10":
        sides = [0.0] * 4
        sides[draw.randrange(4)] = 0.1
        return cropped(image, *sides), 90
    if kind == "mixed":
        part = cropped(image, *(draw.uniform(0, 0.08) for _ in range(4)))
        return part.resize((part.width * 6 // 10, part.height * 6 // 10), Image.Resampling.LANCZOS), 50
    if kind.startswith("blur"):
        # blur1, blur2 and blur4 have a sigma of 0.5, 1 and 2 % of the longer side.
        return image.filter(ImageFilter.GaussianBlur(int(kind[4:]) / 200 * max(width, height))), 90
    if kind == "dark":
        return image.point(lambda value: value // 10), 90
    if kind == "blank":
        return Image.new("RGB", image.size, tuple(draw.randrange(100, 256) for _ in range(3))), 90
    if kind == "tiny":
        return image.resize((24, max(1, 24 * height // width)), Image.Resampling.LANCZOS), 90
    # "truncated": `add_copies` removes the second half of the file.
    return image, 90


def add_copies(base: Path, chosen: list[Path], kind: str, seed: int) -> dict[str, str]:
    """Writes a copy of each chosen photo into the collection in the folder `base`, every second one in another class.

    Returns the original of every copy, both as CLASS/NAME.
    """
    from PIL import Image

    draw = random.Random(seed)
    classes = sorted(path.name for path in base.iterdir())
    originals = {}
    for number, photo in enumerate(chosen):
        label = photo.parent.name
        if number % 2 == 1:
            label = draw.choice([name for name in classes if name != label])
        with Image.open(photo) as opened:
            copy, quality = copy_of(opened.convert("RGB"), kind, draw)
        path = base / label / f"copy-{number}.jpg"
        if path.is_symlink() or path.exists():
            benchlib.fail(f"{label}/{path.name} is already a photo of this collection; rename it")
        copy.save(path, quality=quality)
        if kind == "truncated":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        originals[f"{label}/{path.name}"] = f"{photo.parent.name}/{photo.name}"
    return originals


class Collection:
    """A data set in a temporary folder (links to its photos), to which copies are added and from which they are removed."""

    def __init__(self, folder: Path, photos: list[Path], trueshot: Path):
        self.base, self.cache, self.trueshot = folder / "photos", folder / "cache", trueshot
        self.rows = folder / "rows.safetensors"
        for photo in photos:
            path = self.base / photo.parent.name / photo.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(photo)

    def audit(self, path: Path) -> dict:
        """The JSON report of an audit of a folder or of an embeddings file."""
        options = [] if path.is_file() else ["--cache", self.cache]
        return json.loads(benchlib.output([self.trueshot, "audit", path, "--format", "json", *options]))

    def audit_rows(self) -> dict:
        """The report of an audit of the embeddings alone, without the images."""
        benchlib.output([self.trueshot, "embed", self.base, "--cache", self.cache, "-o", self.rows])
        return self.audit(self.rows)

    def remove(self, copies: dict[str, str]) -> None:
        """Removes the copies that `add_copies` added."""
        for copy in copies:
            (self.base / copy).unlink()


def pairs_of(duplicates: list[dict]) -> set[frozenset]:
    """The pairs of items in the entries `duplicates` of a report, without an order."""
    return {frozenset((pair["item"], pair["other"])) for pair in duplicates}


def measure(name: str, photos: list[Path], copies: int, trueshot: Path) -> dict:
    """Adds copies of every kind to one data set, and returns its figures."""
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection(Path(folder), photos, trueshot)
        benchlib.progress(f"{name}: {len(photos)} photos")
        # In all figures, "images" is what is found by the images, and "rows" what is found by the embeddings alone.
        clean = collection.audit(collection.base)
        false_pairs = {"images": pairs_of(clean["duplicates"]), "rows": pairs_of(collection.audit_rows()["duplicates"])}
        false_problems = [kind for problem in clean["image_problems"] for kind in problem["kinds"]]
        found = {}
        for seed, kind in enumerate([*COPIES, *SPOILED]):
            benchlib.progress(f"{name}: {kind}")
            originals = add_copies(collection.base, draw.sample(photos, min(copies, len(photos))), kind, seed)
            report = collection.audit(collection.base)
            if kind in COPIES:
                wanted = {frozenset(pair) for pair in originals.items()}
                conflicts = pairs_of([pair for pair in report["duplicates"] if pair["label_conflict"]])
                # Pairs of an original and a copy in another class.
                across = {pair for pair in wanted if len({item.split("/")[0] for item in pair}) == 2}
                found[kind] = {
                    "copies": len(wanted),
                    "images": len(wanted & pairs_of(report["duplicates"])),
                    "rows": len(wanted & pairs_of(collection.audit_rows()["duplicates"])),
                    "across": len(across),
                    "conflicts": len(across & conflicts),
                }
            else:
                problems = {problem["item"]: problem["kinds"] for problem in report["image_problems"]}
                hits = sum(SPOILED[kind][0] in problems.get(copy, []) for copy in originals)
                found[kind] = {"copies": len(originals), "found": hits}
            collection.remove(originals)
    return {
        "name": name,
        "photos": len(photos),
        "false_pairs": {key: len(value) for key, value in false_pairs.items()},
        "pairs": sorted(sorted(pair) for pair in false_pairs["images"]),
        "false_problems": {problem: false_problems.count(problem) for problem in PROBLEMS},
        "found": found,
    }


def percent(part: int, whole: int) -> str:
    """A part of a whole in percent; 0 for an empty whole."""
    return f"{100 * part / max(1, whole):.1f} %"


def page(result: dict) -> str:
    """The Markdown page for a result."""
    sets = result["sets"]
    names = [data["name"] for data in sets]
    photos = ", ".join(f"{data['photos']} of {data['name']}" for data in sets)

    def shares_found(key: str) -> list[list[str]]:
        """A line of the table per kind of copy: the shares that are found by `key`, "images" or "rows" (embeddings)."""
        return [[description, *(percent(data["found"][kind][key], data["found"][kind]["copies"]) for data in sets)]
                for kind, description in COPIES.items()]

    conflicts = ", ".join(
        f"{sum(data['found'][kind]['conflicts'] for kind in COPIES)} of "
        f"{sum(data['found'][kind]['across'] for kind in COPIES)} ({data['name']})" for data in sets)
    per_thousand = [[found_by, *(f"{1000 * data['false_pairs'][key] / data['photos']:.1f}" for data in sets)]
                    for key, found_by in (("images", "by the images"), ("rows", "by the embeddings alone"))]
    judged = " ".join(
        f"Judged by eye, {result['same'][data['name']]} of the {data['false_pairs']['images']} pairs of {data['name']} "
        "that were found by the images show the same photo or the same subject photographed again; the others are "
        "different subjects."
        for data in sets if data["name"] in result["same"])
    spoiled = [
        [description, problem, *(percent(data["found"][kind]["found"], data["found"][kind]["copies"]) for data in sets)]
        for kind, (problem, description) in SPOILED.items()
    ]
    reported = [[kind, *(percent(data["false_problems"][kind], data["photos"]) for data in sets)]
             for kind in PROBLEMS]
    return benchlib.wrapped(f"""# Copies of images and poor images

What `trueshot audit` finds of copies that were added to collections of photos ({photos}), and of photos that were
spoiled. There were up to {result['copies']} copies of each kind, half of them in another class than their original.
The thresholds were chosen on other classes of the same data sets, and on drawings.

## Copies that are found

{benchlib.table(["copy", *names], shares_found("images"))}

Copies in another class are reported as label conflicts: {conflicts} of all kinds together.

If only the embeddings are known, because they were read from a file, fewer copies are found: photos of one class
are often as similar to each other as a photo and its copy.

{benchlib.table(["copy", *names], shares_found("rows"))}

## Pairs reported in collections without copies

Pairs per 1,000 photos. The JSON file of this page names the pairs that were found by the images. {judged}

{benchlib.table(["found", *names], per_thousand)}

## Poor images that are found

{benchlib.table(["image", "reported as", *names], spoiled, left=2)}

## Photos that are reported as poor

The share of the unchanged photos.

{benchlib.table(["reported as", *names], reported)}

## How it was measured

```sh
{result['command']}
```
""")


def main() -> None:
    arguments = parse_arguments()
    benchlib.require("PIL")
    draw = random.Random(0)
    sets = [measure(name, sample(folder, arguments.per_class, draw), arguments.copies, arguments.trueshot)
            for name, folder in arguments.photos]
    folders = " ".join(f"{name}={name.upper()}" for name, _ in arguments.photos)
    command = (f"python bench/measure/duplicates.py {folders} --per-class {arguments.per_class} --copies {arguments.copies} "
               "--out docs/results/duplicates.md")
    same = dict(arguments.same)
    if same:
        command += " --same " + " ".join(f"{name}={count}" for name, count in same.items())
    result = {"command": command, "copies": arguments.copies, "same": same, "sets": sets}
    benchlib.publish(arguments.out, page(result), result)


if __name__ == "__main__":
    main()
