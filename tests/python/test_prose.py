"""The documentation and the texts that users see are written in plain technical English.

Two rules are checked, file by file:

- No regular expression of tests/style-words.txt (one per line, matched without regard to case) occurs in the prose:
  Markdown outside code blocks, Markdown cells of notebooks, comments and string literals of Rust and Python, comments of
  CUDA kernels, shell scripts and TOML files, and everything in the web page and the report templates. Tests are left out.
- No line of Markdown is longer than 100 columns. Tables, code blocks and the targets of links do not count.

Needs nothing but pytest:

    pytest tests/python/test_prose.py
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATTERN_FILE = ROOT / "tests" / "style-words.txt"
COLUMNS = 100

# Phrases that a pattern forbids and that are right where they are: (file, the text that matches, the reason). An entry
# that matches nothing any more fails, so that the list does not outlive its reasons.
EXCEPTIONS: list[tuple[str, str, str]] = [
    # scikit-learn's check_estimator compares this message with its own.
    ("crates/python/python/trueshot/_labels.py", "is None", "the wording of scikit-learn's error"),
]

# Pages with text that a program writes: its lines may be longer than 100 columns. The value is the beginning of the
# first generated line; None if the whole page is generated.
GENERATED: dict[str, str | None] = {
    # `trueshot reproduce` writes everything below the hand-written introduction.
    "docs/results/cifar-fs.md": "- program: trueshot",
    "docs/results/miniimagenet.md": "- program: trueshot",
    "docs/results/miniimagenet-commands.md": None,
    "docs/results/mini-shots.md": "- program: trueshot",
    "docs/results/mini.md": "- program: trueshot",
    # The scripts in bench/ write these pages, some with the description of the machine in one long line.
    "docs/results/audit-grid.md": "228 cells",
    "docs/results/bank.md": None,
    "docs/results/closed-form.md": None,
    "docs/results/cost.md": None,
    "docs/results/engines.md": None,
    "docs/results/heads.md": None,
    "docs/results/networks.md": None,
    "docs/results/python.md": None,
    "docs/results/speed.md": None,
}

MARKDOWN = ["*.md", "docs/**/*.md", "bench/*.md", "crates/python/*.md"]
TEXTS = {
    ".md": MARKDOWN,
    ".ipynb": ["docs/notebooks/*.ipynb"],
    ".rs": ["crates/*/src/**/*.rs", "crates/*/examples/*.rs", "crates/*/build.rs", "fuzz/**/*.rs"],
    ".py": ["crates/**/*.py", "bench/**/*.py"],
    ".cu": ["crates/cuda/kernels/*.cu", "crates/cuda/kernels/*.cuh", "crates/cuda/emulator/*.cpp"],
    ".sh": ["test", "release/*", "crates/cuda/gpu-tests", "docs/*.sh", "fuzz/*.sh", "tests/*/run"],
    ".toml": ["crates/cli/experiments/*.toml", "**/Cargo.toml", "*.toml"],
    "": ["crates/server/src/page/*", "crates/core/templates/*"],
}


def patterns() -> list[re.Pattern[str]]:
    lines = PATTERN_FILE.read_text(encoding="utf-8").splitlines()
    return [re.compile(line, re.IGNORECASE) for line in lines if line.strip() and not line.startswith("#")]


def files(globs: list[str]) -> list[str]:
    """Files that match; without tests of Rust, whose texts no user sees."""
    found = {path for glob in globs for path in ROOT.glob(glob) if path.is_file() and path.name != "tests.rs"}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


# --- Which parts of a file are prose: paragraphs as lists of (line number, text) ---

Paragraph = list[tuple[int, str]]


def markdown_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside code blocks; a code block counts as an empty line."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if line.strip() == fence:
                fence = None
        else:
            yield number, line
            continue
        yield number, ""


def paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[Paragraph]:
    """Lines up to the next empty one: a phrase may continue on the next line."""
    current: Paragraph = []
    for number, line in lines:
        if line.strip():
            current.append((number, line.strip()))
        elif current:
            yield current
            current = []
    if current:
        yield current


def notebook_prose(text: str) -> Iterator[Paragraph]:
    """Markdown cells; line numbers are those of the cell's index, as a notebook has no lines."""
    for index, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "markdown":
            for paragraph in paragraphs(markdown_lines("".join(cell["source"]))):
                yield [(index, line) for _, line in paragraph]


CODE = re.compile(r"`[^`]*`")


def comment_paragraphs(comments: Iterator[tuple[int, str]]) -> Iterator[Paragraph]:
    """Comments on adjacent lines as paragraphs, without code in backticks."""
    current: Paragraph = []
    for number, text in comments:
        if current and (number != current[-1][0] + 1 or not text.strip()):
            yield current
            current = []
        if text.strip():
            current.append((number, CODE.sub("", text).strip()))
    if current:
        yield current


RUST_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>\br(?P<hashes>\#*)".*?"(?P=hashes))|(?P<string>"(?:[^"\\]|\\.)*")|(?P<char>'(?:\\[^\n]*?|[^'\\\n])')""",
    re.VERBOSE | re.DOTALL,
)


def rust_prose(text: str) -> Iterator[Paragraph]:
    """Comments and string literals, without the tests of a file."""
    text = re.split(r"^#\[cfg\(test\)\]\s*\nmod ", text, maxsplit=1, flags=re.MULTILINE)[0]
    comments = []
    for token in RUST_TOKEN.finditer(text):
        number = text.count("\n", 0, token.start()) + 1
        if token["comment"]:
            comments.append((number, token["comment"].lstrip("/!")))
        elif literal := token["string"] or token["raw"]:
            # A backslash at the end of a line joins it with the next one.
            literal = re.sub(r"\\\n\s*", lambda _: "\n", literal).replace("\\n", " ")
            yield from paragraphs((number + i, line) for i, line in enumerate(literal.split("\n")))
    yield from comment_paragraphs(iter(comments))


def line_comments(text: str, mark: str) -> Iterator[Paragraph]:
    """Comments from `mark` to the end of the line."""
    found = ((number, re.search(rf"(?:^|\s){mark}(.*)", line)) for number, line in enumerate(text.splitlines(), 1))
    return comment_paragraphs((number, match[1]) for number, match in found if match)


def python_prose(text: str) -> Iterator[Paragraph]:
    """Docstrings and other string literals, and comments."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = ((token.start[0], token.string[1:]) for token in tokens if token.type == tokenize.COMMENT)
    yield from comment_paragraphs(comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from paragraphs(enumerate(node.value.split("\n"), node.lineno))


def prose(name: str) -> Iterator[Paragraph]:
    text = (ROOT / name).read_text(encoding="utf-8")
    match Path(name).suffix:
        case ".md":
            return paragraphs(markdown_lines(text))
        case ".ipynb":
            return notebook_prose(text)
        case ".rs":
            return rust_prose(text)
        case ".py":
            return python_prose(text)
        case ".cu" | ".cuh" | ".cpp":
            return line_comments(text, "//")
        case ".toml" | ".sh":
            return line_comments(text, "#")
    if text.startswith("#!"):
        return line_comments(text, "#")
    return paragraphs(enumerate(text.splitlines(), 1))


# --- The two rules ---


def matches(found: Iterator[Paragraph]) -> Iterator[tuple[int, str, str]]:
    """Line, matching text and pattern of every forbidden phrase."""
    for paragraph in found:
        joined = " ".join(line for _, line in paragraph)
        for pattern in patterns():
            for match in pattern.finditer(joined):
                yield line_at(paragraph, match.start()), match[0], pattern.pattern


def line_at(paragraph: Paragraph, offset: int) -> int:
    for number, line in paragraph:
        if offset <= len(line):
            return number
        offset -= len(line) + 1
    return paragraph[-1][0]


def long_lines(text: str, generated: str | None = None) -> list[int]:
    """Numbers of the lines that are too long, up to the first that begins with `generated`."""
    found = []
    for number, line in markdown_lines(text):
        if generated is not None and line.startswith(generated):
            break
        # A link counts by what is shown; a table must be one line; the text of an image is not wrapped.
        shown = re.sub(r"\]\([^)]*\)|<?https?://\S+", "]", line)
        if len(shown) > COLUMNS and not line.lstrip().startswith(("|", "![")):
            found.append(number)
    return found


@pytest.mark.parametrize("name", [name for globs in TEXTS.values() for name in files(globs)])
def test_no_forbidden_phrase_occurs(name):
    allowed = {phrase.lower() for file, phrase, _ in EXCEPTIONS if file == name}
    found = [
        f"{name}:{line}: '{phrase}' matches {pattern}"
        for line, phrase, pattern in matches(prose(name))
        if phrase.lower() not in allowed
    ]
    assert not found, "\n".join(["say it in plain words, or add an exception with its reason:", *found])


@pytest.mark.parametrize("name", [name for name in files(MARKDOWN) if GENERATED.get(name, "") is not None])
def test_no_line_of_markdown_is_too_long(name):
    lines = long_lines((ROOT / name).read_text(encoding="utf-8"), GENERATED.get(name))
    assert not lines, "\n".join(f"{name}:{line}: longer than {COLUMNS} columns" for line in lines)


# --- The lists above name what is there ---


def test_every_exception_is_still_needed():
    for name, phrase, reason in EXCEPTIONS:
        assert reason, f"{name}: '{phrase}' has no reason"
        found = {match.lower() for _, match, _ in matches(prose(name))}
        assert phrase.lower() in found, f"{name}: '{phrase}' does not occur any more; delete the exception"


def test_generated_files_exist():
    checked = {name for globs in TEXTS.values() for name in files(globs)}
    assert set(GENERATED) <= checked, f"not there any more: {sorted(set(GENERATED) - checked)}"
    for name, beginning in GENERATED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert beginning is None or f"\n{beginning}" in text, f"{name} has no line that begins with '{beginning}'"


# --- The checks find what they should ---


def test_a_phrase_is_found_across_lines_but_not_in_code():
    text = "One paragraph that\nis none of them.\n\n```text\nthis is none\n```\n\n- an item of\n  old\n"
    assert [(line, phrase) for line, phrase, _ in matches(paragraphs(markdown_lines(text)))] == [(2, "is none"), (8, "of old")]


def test_long_lines_are_found_but_not_tables_code_and_links():
    long = "word " * 21
    assert long_lines(f"short\n{long}\n") == [2]
    assert long_lines(f"| {long} |\n```\n{long}\n```\n[short](https://example.org/{'x' * 100})\n") == []
    assert long_lines(f"- made by a program\n{long}\n", "- made by") == []


def test_comments_and_strings_of_rust_are_read_but_not_its_tests():
    text = '''
/// Nobody
/// reads `of old` this help
#[derive(Args)]
struct Arguments {
    rows: usize, // so many rows
}

fn run() {
    println!("if it has \\
        ones, {} \\"of old\\"", 'x');
    let raw = r#"to be "had""#;
}

#[cfg(test)]
mod tests { const TEXT: &str = "of old"; }
'''
    found = sorted((line, phrase.lower()) for line, phrase, _ in matches(rust_prose(text)))
    assert found == [(2, "nobody"), (6, "so many"), (10, "if it has ones"), (11, "of old")]


def test_comments_and_strings_of_python_are_read_but_not_its_code():
    text = '"""For\nwhoever reads."""\nif x is None:  # nobody\n    raise ValueError(f"{x is None} is none")\n'
    found = sorted((line, phrase) for line, phrase, _ in matches(python_prose(text)))
    assert found == [(2, "whoever"), (3, "nobody"), (4, "is none")]


def test_comments_of_other_languages_are_read_across_lines():
    text = "int x;  // so\n        // many\nint y;\n"
    assert [(line, phrase) for line, phrase, _ in matches(line_comments(text, "//"))] == [(1, "so many")]
