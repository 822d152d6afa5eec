"""Results as files: a Markdown page for the book and the same as JSON, each written whole or not at all."""
from __future__ import annotations

import json
import os
from pathlib import Path


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def write(path: Path, markdown: str, result: dict) -> None:
    """Writes `path` and, beside it, the same name ending in `.json`."""
    for target, text in [(path, markdown), (path.with_suffix(".json"), json.dumps(result, indent=1) + "\n")]:
        target.parent.mkdir(parents=True, exist_ok=True)
        sibling = target.with_name(f".{target.name}.{os.getpid()}.part")
        sibling.write_text(text)
        os.replace(sibling, target)
