#!/usr/bin/env python3
"""Write the result pages again from their JSON files, without measuring anything.

    python bench/measure/pages.py              # after a change to the text of a page
    python bench/measure/pages.py --check      # exit with 1 if a page is not what its script writes

The scripts in `SCRIPTS` store all figures of their page in docs/results in the JSON file of the same name. (audit.md and
audit-grid.md have more text than their scripts write, and are not among them.) Needs no packages. Takes a second.
"""
from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

# The script in this folder that writes a page, by the name of the page.
SCRIPTS = {
    "speed": "speed", "networks": "networks", "bank": "bank", "cost": "cost", "python": "python_package",
    "engines": "engines", "transductive": "transductive", "duplicates": "duplicates",
    "authors-program": "authors_program",
}


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="compare the pages and write nothing")
    parser.add_argument("--results", type=benchlib.existing_folder, default=str(benchlib.RESULTS), metavar="DIR",
                        help="folder of the pages and JSON files [default: docs/results]")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    outdated = []
    for name, script in SCRIPTS.items():
        path = arguments.results / f"{name}.md"
        try:
            result = json.loads(path.with_suffix(".json").read_text())
        except (OSError, ValueError) as problem:
            benchlib.fail(f"{path.with_suffix('.json')} cannot be read: {problem}")
        text = importlib.import_module(script).page(result)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        outdated.append(str(path))
        if not arguments.check:
            benchlib.write_text(path, text)
            benchlib.progress(f"wrote {path}")
    if arguments.check and outdated:
        benchlib.fail(f"{', '.join(outdated)}: not what the script writes; run {Path(__file__)} without --check")


if __name__ == "__main__":
    main()
