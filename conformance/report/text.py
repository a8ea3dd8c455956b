"""How numbers and untrusted text are written, and the files that they go into."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` without terminal colours, and with all that is invisible but has an effect as escapes.

    That is control characters, marks that reorder text (they could disguise a line as another one), and lone
    surrogates, which no file can hold. Line ends and tabs stay.
    """
    text = _ANSI.sub("", text.replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`text`, `visible`, on one line: a name with a line end in it must not look like two lines of ours."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


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


def power_of_ten(exponent: int) -> str:
    """10⁻⁹ for -9."""
    return "10" + str(exponent).translate(SUPERSCRIPT)


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


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts w2 before w10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", text) if part]


def listed(parts: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
