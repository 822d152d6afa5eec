"""Runs the Python code blocks of pages, those of each page in one namespace."""

import re
import sys

for page in sys.argv[1:]:
    with open(page, encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    if not blocks:
        sys.exit(f"{page} has no lines of Python")
    names = {"__name__": page}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    print(f"{page}: {len(blocks)} blocks ran")
