"""How numbers and untrusted text are written, to the terminal and into files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` without terminal colours, and with invisible characters that have an effect as escapes.

    These are control characters, marks that reorder text (they could disguise a line), and lone surrogates, which no
    file can store. Line ends and tabs stay.
    """
    text = _ANSI.sub("", text.replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`text`, `visible`, on one line: a name with a line end must not look like two lines of ours."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def cut(text: str, most: int) -> str:
    """Its first words, if it has more than `most` characters."""
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"


#: Code, which Markdown shows unchanged. A bar would still end a table cell.
_CODE = re.compile(r"(`[^`|]+`)")
_SIGNS = re.compile(r"[\\`*_\[\]<>#|~&]")


def escaped(text: str) -> str:
    """Text on one line, with the signs of Markdown and HTML escaped; text between backticks is code."""
    parts = _CODE.split(one_line(text))
    return "".join(part if number % 2 else _SIGNS.sub(r"\\\g<0>", part) for number, part in enumerate(parts))


def number(value: float | None, digits: int = 9) -> str:
    """A value with up to `digits` significant digits; 9 distinguish any two fp32 values."""
    if value is None:
        return "none"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def distinct(expected: float | None, observed: float | None) -> tuple[str, str]:
    """Both values, with enough digits to see that they differ."""
    shown = number(expected), number(observed)
    if shown[0] == shown[1] and expected != observed:
        return number(expected, 17), number(observed, 17)
    return shown


def duration(seconds: float) -> str:
    """A time span: 0.12 s, 14 s, 2 min 5 s."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{int(seconds + 0.5) // 60} min {int(seconds + 0.5) % 60} s"


def plural(count: int, noun: str) -> str:
    """1 case, 2 cases."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def runs(values: Iterable[float]) -> list[tuple[str, int]]:
    """Each run of equal values with its length: 1024 1024 512 gives (1024, 2), (512, 1)."""
    return [(number(value), len(list(group))) for value, group in groupby(values)]


def capitalized(text: str) -> str:
    """`text` with a capital first letter; the rest stays, unlike with `str.capitalize`."""
    return text[:1].upper() + text[1:]


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts w2 before w10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", text) if part]


def listed(parts: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


#: By tone.
STYLES = {"idle": "dim", "good": "green", "near": "cyan", "doubt": "yellow", "setup": "magenta", "bad": "red"}


class SafeConsole(Console):
    """Prints control characters of any text as escapes; its own colours and cursor moves stay.

    `NO_COLOR` switches colours off; otherwise `CLICOLOR_FORCE` switches them on also where output is not a terminal.
    """

    def __init__(self, **more: Any) -> None:
        if os.environ.get("CLICOLOR_FORCE", "0") != "0" and not os.environ.get("NO_COLOR"):
            more.setdefault("color_system", "standard")
        super().__init__(**more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def print_beside(head: Text, text: Text, console: Console) -> None:
    """Prints `text` next to its head, with its next lines indented by the head. A long word such as a path stays whole;
    no line ends with blanks."""
    indent, width = Text(" " * head.cell_len), console.width - head.cell_len
    lines = [line for part in text.split("\n", allow_blank=True) for line in part.divide(_breaks(part.plain, width))]
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text.assemble(indent if number else head, line), soft_wrap=True)


def _breaks(text: str, width: int) -> Iterator[int]:
    """The positions between words where lines begin. rich breaks long words, or cuts them off."""
    first = len(text) - len(text.lstrip())
    used = first
    for word in re.finditer(r"\S+\s*", text):
        if word.start() > first and used + cell_len(word[0].rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word[0])


def write(file: Path, text: str) -> None:
    """Replaces `file` with `text` in UTF-8, lone surrogates escaped. A symbolic link is replaced, not followed: it may
    lead anywhere.

    Raises OSError.
    """
    if not is_replaced(file):
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    new = file.with_name(f".conformance-{token_hex(8)}")
    try:
        with new.open("x", encoding="utf-8", errors="backslashreplace") as opened:
            opened.write(text)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def is_replaced(file: Path) -> bool:
    """Whether another file can replace it: no device and no pipe, such as /dev/stdout."""
    folder = file.parent.resolve()
    is_system = folder == Path("/dev") or folder.is_relative_to("/proc")
    return not is_system and (file.is_symlink() or file.is_file() or not file.exists())
