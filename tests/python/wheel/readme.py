"""Runs the blocks of Python in pages, each page's in one namespace, as somebody who copies them would."""

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
