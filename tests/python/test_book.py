"""The book in docs/ and the other pages agree with the files and the program that they describe.

- Every link to a file of the repository has a target, with a heading for its anchor.
- SUMMARY.md, the table of contents of the book, lists every page of docs/ once.
- Every `trueshot` command in a code block has a subcommand and options that the program knows.

Needs pytest, and the program for the commands:

    TRUESHOT_BIN=target/release/trueshot pytest tests/python/test_book.py
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for glob in ("*.md", "docs/**/*.md", "bench/*.md", "crates/*/README.md")
    for path in ROOT.glob(glob)
)
needs_program = pytest.mark.skipif(not os.environ.get("TRUESHOT_BIN"), reason="TRUESHOT_BIN is not set")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, language and lines of every code block."""
    block: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*```+\s*(\w*)", line)
        if mark and block is None:
            first, language, block = number + 1, mark[1], []
        elif mark and block is not None:
            yield first, language, block
            block = None
        elif block is not None:
            block.append(line.strip())


def without_code(text: str) -> str:
    text = re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("[", " ").replace("]", " "), text)


# --- Links ---


def links(text: str) -> list[str]:
    """The targets of all links and images that are not addresses."""
    targets = re.findall(r"\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"", without_code(text))
    return [target for pair in targets for target in pair if target and not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of all headings, by the rule of GitHub and mdbook."""
    headings = re.findall(r"^#+\s+(.*)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-") for heading in headings]
    return set(names) | set(re.findall(r"<a id=\"([^\"]+)\"", text))


def broken_links(name: str, text: str) -> list[str]:
    broken = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists():
            broken.append(f"{name}: {target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            broken.append(f"{name}: {target}: there is no such heading")
    return broken


@pytest.mark.parametrize("name", PAGES)
def test_links_have_targets(name):
    assert not broken_links(name, text_of(name))


def test_the_table_of_contents_lists_every_page_once():
    listed = links(text_of("docs/SUMMARY.md"))
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")]
    assert sorted(listed) == sorted(page for page in pages if page != "SUMMARY.md")


# --- Commands ---


def commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and words of every `trueshot` command in a code block, without what follows a pipe or a redirection."""
    for first, language, lines in code_blocks(text):
        joined, start = "", first
        for number, line in enumerate(lines, first):
            is_input = language in ("sh", "bash") or line.startswith("$ ") or joined
            if not is_input:
                continue
            start = start if joined else number
            joined += line.removeprefix("$ ").removesuffix("\\") + " "
            if not line.endswith("\\"):
                yield from ((start, words) for words in words_of_commands(joined))
                joined = ""


def words_of_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in a text that is not a command
        return
    command: list[str] | None = None
    for word in [*words, ";"]:
        if command is None:
            command = [] if "=" not in word and Path(word).name == "trueshot" else None
        elif set(word) <= set("();<>|&"):
            yield command
            command = None
        else:
            command.append(word)


@functools.cache
def help_of(*path: str) -> str:
    program = os.path.abspath(os.environ["TRUESHOT_BIN"])
    return subprocess.run([program, *path, "--help"], capture_output=True, text=True, check=True).stdout


def subcommands(path: tuple[str, ...]) -> set[str]:
    section = re.search(r"^Commands:\n((?:.*\n)*?)(?=^\S|\Z)", help_of(*path), re.MULTILINE)
    return set(re.findall(r"^  ([a-z][a-z-]*)", section[1], re.MULTILINE)) if section else set()


def options(path: tuple[str, ...]) -> set[str]:
    lines = re.findall(r"^ +(-\w, )?(--[a-z][\w-]*)", help_of(*path), re.MULTILINE)
    return {option.strip(", ") for pair in lines for option in pair} | {"-h", "--help", "-V", "--version"}


def unknown_words(words: list[str]) -> list[str]:
    """The words of a command that the program does not know."""
    path: tuple[str, ...] = ()
    rest = list(words)
    while rest and rest[0] in subcommands(path):
        path += (rest.pop(0),)
    if subcommands(path) and rest and not rest[0].startswith(("-", "$", "<", "[", "…", "...")):
        return [rest[0]]
    given = {word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)}
    return sorted(given - options(path))


@needs_program
@pytest.mark.parametrize("name", PAGES)
def test_commands_are_those_of_the_program(name):
    unknown = [
        f"{name}:{line}: trueshot {' '.join(words)}: {word} is unknown"
        for line, words in commands(text_of(name))
        for word in unknown_words(words)
    ]
    assert not unknown, "\n".join(unknown)


# --- The checks find what they should ---


def test_broken_links_are_found():
    text = "[a](README.md) [b](missing.md) [c](README.md#no-such-heading) `[d](code.md)` [e](https://example.org)\n"
    assert [line.split(": ")[1] for line in broken_links("README.md", text)] == ["missing.md", "README.md#no-such-heading"]


def test_commands_are_found_in_code_blocks():
    text = "trueshot prose\n```sh\nA=1 trueshot eval x \\\n    --episodes 5 | head; trueshot demo > out\n```\n```text\n$ trueshot audit .\ntrueshot output\n```\n"
    assert list(commands(text)) == [
        (3, ["eval", "x", "--episodes", "5"]),
        (3, ["demo"]),
        (7, ["audit", "."]),
    ]


@needs_program
def test_unknown_subcommands_and_options_are_found():
    assert unknown_words(["train", "relabel", "x", "--steps", "5"]) == []
    assert unknown_words(["train", "relable", "x"]) == ["relable"]
    assert unknown_words(["eval", "x", "--no-such-option=3", "-e", "5"]) == ["--no-such-option"]
