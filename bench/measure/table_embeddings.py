#!/usr/bin/env python3
"""Make embeddings files of tables and texts, to train and measure `trueshot audit` on more than images.

    python bench/measure/table_embeddings.py vowel.arff --skip 0,1,2 --out vowel.safetensors
    python bench/measure/table_embeddings.py banking.csv --text 0 --class-column 1 --dim 200 --out banking.safetensors

A table is an ARFF file or a CSV file with a header. Its numbers are scaled to mean 0 and standard deviation 1, each value of a
column of words becomes a column of zeros and ones, and missing numbers become the mean. A text becomes the frequencies of
its words (or with --characters of 2 to 4 characters), weighted by how rare they are, and a singular value decomposition
brings them to --dim dimensions. Needs numpy and scikit-learn.
"""
from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

MOST_VALUES = 30


def read_table(path: Path) -> list[list[str]]:
    """The rows of an ARFF or CSV file."""
    lines = path.read_text(errors="replace").splitlines()
    if path.suffix != ".arff":
        return list(csv.reader(lines))[1:]
    start = next(number for number, line in enumerate(lines) if line.strip().lower().startswith("@data"))
    lines = [line.strip() for line in lines[start + 1 :] if line.strip() and not line.strip().startswith("%")]
    return [[cell.strip() for cell in row] for row in csv.reader(lines, quotechar="'", skipinitialspace=True)]


def columns_of(cells: list[str]) -> list:
    """A column of the table as numeric columns: scaled numbers, or one-hot for at most MOST_VALUES distinct words."""
    import numpy as np

    known = [cell for cell in cells if cell != "?"]
    try:
        mean = np.mean([float(cell) for cell in known])
        return [np.array([mean if cell == "?" else float(cell) for cell in cells])]
    except ValueError:
        values = sorted(set(known))
        return [np.array([float(cell == value) for cell in cells]) for value in values] if len(values) <= MOST_VALUES else []


def embed_numbers(rows: list[list[str]], skipped: set[int]):
    import numpy as np

    columns = [column for place in range(len(rows[0])) if place not in skipped
               for column in columns_of([row[place] for row in rows])]  # fmt: skip
    columns = np.stack([column for column in columns if column.std() > 1e-9], 1)
    return (columns - columns.mean(0)) / columns.std(0)


def embed_texts(texts: list[str], dim: int, characters: bool):
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    kind = dict(analyzer="char_wb", ngram_range=(2, 4)) if characters else dict(stop_words=None)
    frequencies = TfidfVectorizer(sublinear_tf=True, min_df=2, **kind).fit_transform(texts)
    return TruncatedSVD(dim, random_state=0).fit_transform(frequencies)


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("table", type=benchlib.existing_file, help="ARFF or CSV file")
    parser.add_argument("--class-column", type=int, default=-1, help="column with the class, from 0; -1 is the last")
    parser.add_argument("--skip", default="", help="columns to leave out, separated by commas")
    parser.add_argument("--text", type=int, help="column with a text, which is embedded instead of the numbers")
    parser.add_argument("--dim", type=benchlib.positive, default=200, help="dimensions of a text")
    parser.add_argument("--characters", action="store_true", help="count groups of characters instead of words")
    parser.add_argument("--most", type=benchlib.positive, default=6000, help="random rows to keep of a larger table")
    parser.add_argument("--out", type=Path, required=True, help="embeddings file to write")
    arguments = parser.parse_args()
    benchlib.require("numpy", "sklearn")
    import numpy as np

    rows = read_table(arguments.table)
    width = len(rows[0])
    rows = [row for row in rows if len(row) == width]
    labels = [row[arguments.class_column] for row in rows]
    if arguments.text is None:
        skipped = {int(place) for place in arguments.skip.split(",") if place} | {arguments.class_column % width}
        features = embed_numbers(rows, skipped)
    else:
        features = embed_texts([row[arguments.text] for row in rows], arguments.dim, arguments.characters)
    kept = np.sort(np.random.default_rng(0).permutation(len(rows))[: arguments.most])
    classes = sorted(set(labels))
    numbers = np.array([classes.index(labels[row]) for row in kept], dtype=np.int64)
    names = [f"row {row}" for row in kept]
    benchlib.write_embeddings(arguments.out, features[kept].astype(np.float32), numbers, classes, names, {})
    print(f"{arguments.out}: {len(kept)} rows of {features.shape[1]} numbers, {len(classes)} classes")


if __name__ == "__main__":
    main()
