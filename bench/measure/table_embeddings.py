#!/usr/bin/env python3
"""Make embeddings files from tables and texts, to train and measure `trueshot audit` on more than images.

    python bench/measure/table_embeddings.py vowel.arff --skip 0,1,2 --out vowel.safetensors
    python bench/measure/table_embeddings.py banking.csv --text 0 --class-column 1 --dim 200 --out banking.safetensors

A table is an ARFF file or a CSV file with a header. The embedding of a row consists of these columns, each scaled to mean
0 and standard deviation 1; constant columns are left out:

  - A column of numbers as it is. A missing number ("?" or an empty cell) becomes the mean of the column.
  - For a column of words, one column per distinct word, with 1 where the row has this word and 0 elsewhere. A missing word
    is 0 in all of them. Columns with more than 30 distinct words are left out.

With --text, the embedding of a row is that of its text: the TF-IDF weights of the words (with --characters, of the groups
of 2 to 4 characters) that occur in at least two texts, reduced to --dim dimensions by a truncated singular value
decomposition.

Needs numpy and scikit-learn.
"""
from __future__ import annotations

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# Columns with more distinct words are left out: they are more likely names or texts than categories.
MAX_CATEGORIES = 30
# Cells without a value.
MISSING = ("", "?")


def read_table(path: Path) -> list[list[str]]:
    """The rows of an ARFF or CSV file, as the texts of their cells."""
    if path.suffix != ".arff":
        with path.open(newline="", errors="replace") as file:
            return list(csv.reader(file))[1:]
    lines = path.read_text(errors="replace").split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip().lower().startswith("@data")), None)
    if start is None:
        benchlib.fail(f"{path} is not an ARFF file: it has no line '@data'")
    lines = [line.strip() for line in lines[start + 1 :] if line.strip() and not line.strip().startswith("%")]
    return [[cell.strip() for cell in row] for row in csv.reader(lines, quotechar="'", skipinitialspace=True)]


def columns_of(cells: list[str]) -> list:
    """A column of the table as numeric columns `[rows]`: its numbers, or a column of zeros and ones per distinct word. Empty
    if there are more than MAX_CATEGORIES distinct words."""
    import numpy as np

    known = [cell for cell in cells if cell not in MISSING]
    try:
        mean = np.mean([float(cell) for cell in known])
        return [np.array([mean if cell in MISSING else float(cell) for cell in cells])]
    except ValueError:
        words = sorted(set(known))
        if len(words) > MAX_CATEGORIES:
            return []
        return [np.array([float(cell == word) for cell in cells]) for word in words]


def embed_numbers(rows: list[list[str]], skipped: set[int]):
    """All columns but the skipped ones as `[rows, columns]`, scaled to mean 0 and standard deviation 1. Constant columns are
    left out."""
    import numpy as np

    columns = [numbers for column in range(len(rows[0])) if column not in skipped
               for numbers in columns_of([row[column] for row in rows])]  # fmt: skip
    columns = [column for column in columns if column.std() > 1e-9]
    if not columns:
        benchlib.fail("the table has no column of numbers or of a few different words; give the column of a text with --text")
    features = np.stack(columns, 1)
    return (features - features.mean(0)) / features.std(0)


def embed_texts(texts: list[str], dim: int, characters: bool):
    """TF-IDF weights of words (with `characters`, of groups of 2 to 4 characters), reduced to `[texts, dim]`."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    options = dict(analyzer="char_wb", ngram_range=(2, 4)) if characters else {}
    weights = TfidfVectorizer(sublinear_tf=True, min_df=2, **options).fit_transform(texts)
    return TruncatedSVD(dim, random_state=0).fit_transform(weights)


def main() -> None:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("table", type=benchlib.existing_file, metavar="FILE", help="ARFF or CSV file")
    parser.add_argument("--class-column", type=int, default=-1, metavar="N",
                        help="column with the class, from 0; -1 is the last [default: %(default)s]")
    parser.add_argument("--skip", default="", metavar="N,..", help="columns to leave out, separated by commas [default: none]")
    parser.add_argument("--text", type=int, metavar="N",
                        help="column with a text, which is embedded instead of all other columns")
    parser.add_argument("--dim", type=benchlib.positive, default=200, metavar="N",
                        help="dimensions of the embedding of a text [default: %(default)s]")
    parser.add_argument("--characters", action="store_true", help="count groups of characters instead of words")
    parser.add_argument("--max-rows", type=benchlib.positive, default=6000, metavar="N",
                        help="rows to keep of a larger table, chosen at random [default: %(default)s]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="embeddings file to write (.safetensors)")
    arguments = parser.parse_args()
    benchlib.require("numpy", "sklearn")
    import numpy as np

    rows = read_table(arguments.table)
    if not rows:
        benchlib.fail(f"{arguments.table} has no rows")
    width = len(rows[0])
    complete = [row for row in rows if len(row) == width]
    if len(complete) < len(rows):
        print(f"{len(rows) - len(complete)} rows with another number of columns than the first are left out", file=sys.stderr)
    rows = complete
    labels = [row[arguments.class_column] for row in rows]
    if arguments.text is None:
        skipped = {int(column) % width for column in arguments.skip.split(",") if column} | {arguments.class_column % width}
        features = embed_numbers(rows, skipped)
    else:
        features = embed_texts([row[arguments.text] for row in rows], arguments.dim, arguments.characters)
    kept = np.sort(np.random.default_rng(0).permutation(len(rows))[: arguments.max_rows])
    classes = sorted(set(labels))
    class_numbers = np.array([classes.index(labels[row]) for row in kept], dtype=np.int64)
    names = [f"row {row}" for row in kept]
    benchlib.write_embeddings(arguments.out, features[kept].astype(np.float32), class_numbers, classes, names, {})
    print(f"{arguments.out}: {len(kept)} rows of {features.shape[1]} numbers, {len(classes)} classes")


if __name__ == "__main__":
    main()
