"""Finds phrases that do not read as plain English, and says what to write instead.

    python -m tools.prose [FILE...]

Reads all files of the checkout, or those named: the prose of Markdown, without code and quotations; comments and
strings of Python, without inline code; the text of templates. The phrases are in tools/prose.txt. Exits with 1 if it
finds any.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: Parts of a text that are not prose. NULs replace them, so no phrase matches across one.
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"^ *>.*$", re.MULTILINE)
_TARGET = re.compile(r"(?<=\])\([^)\s]*\)|<[^>\n]*>|https?://\S+")
_FIELD = re.compile(r"\{[^{}]*\}")
_STATEMENT = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|<style.*?</style>|<script.*?</script>|<[^>]*>", re.DOTALL)
_TEXT_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Phrase(NamedTuple):
    """A pattern to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


class Hit(NamedTuple):
    """A phrase in a file."""

    line: int
    text: str
    instead: str


@cache
def phrases() -> list[Phrase]:
    """The phrases of tools/prose.txt. A space in a pattern also matches the end of a line."""
    found = []
    for line in (ROOT / "tools" / "prose.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, instead = line.split(" -> ")
            found.append(Phrase(re.compile(re.sub(" (?![*?])", r"\\s+", pattern), re.MULTILINE), instead))
    return found


def _without(text: str, *parts: re.Pattern[str]) -> str:
    """The text with each of these parts replaced by as many NULs, lines kept."""
    for part in parts:
        text = part.sub(lambda found: re.sub(r"[^\n]", "\0", found[0]), text)
    return text


def of_markdown(text: str) -> str:
    """The prose of a Markdown page, at its place; the rest is NUL."""
    return _without(text, _FENCED, _QUOTED, _INLINE_CODE, _TARGET)


def of_template(text: str) -> str:
    """The text of a template, at its place."""
    return _without(text, _STATEMENT)


def of_python(text: str) -> str:
    """The comments and strings of a module, at their place. Phrases continue in the next comment or string."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    prose = list(re.sub(r"[^\s#]", "\0", text).replace("#", " "))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXT_TOKENS:
            start, end = starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
            said = text[start:end]
            if token.type != tokenize.COMMENT:
                said = re.sub(r"\\n|[\"\\]", lambda found: " " * len(found[0]), said)
                said = _without(said, _FIELD)
            prose[start:end] = _without(said, _INLINE_CODE, _TARGET).replace("#", " ")
    return "".join(prose)


READERS: dict[str, Callable[[str], str]] = {
    ".md": of_markdown,
    ".py": of_python,
    ".j2": of_template,
    ".jinja": of_template,
}


def hits(file: Path) -> Iterator[Hit]:
    """The phrases in a file, by line."""
    prose = READERS[file.suffix](file.read_text())
    for pattern, instead in phrases():
        for found in pattern.finditer(prose):
            yield Hit(prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), instead)


def files() -> list[Path]:
    """The files of the checkout that can be read."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if Path(name).suffix in READERS and (ROOT / name).exists()]


if __name__ == "__main__":
    wrong = 0
    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else files():
        for hit in sorted(hits(file)):
            wrong += 1
            name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
            print(f'{name}:{hit.line}: "{hit.text}": write {hit.instead}')
    sys.exit(wrong > 0)
