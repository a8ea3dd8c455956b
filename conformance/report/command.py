"""Command lines for reports: without secrets, with paths relative to the working folder."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

HIDDEN = "REDACTED"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = re.compile(
    r".*(secret|token|password|passwd|pwd|passphrase|credential|cookie)|pass|auth|authorization|bearer|"
    r"(api|access|auth|account|encryption|license|private|ssh)?key"
)
# Numbers, lists of numbers, and 2**15.
_COUNT = re.compile(r"""(?:[-+*/\d.,_\s\[\]()"']|(?<=\d)(?:e|[kmbtg]\b))+""", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"([^\s=:/'\"{]+)=(.+)", re.DOTALL)
# In a word with several values: a URL's query, JSON, YAML, a header, a command for `sh -c`.
_NAME = re.compile(
    r"""(?<![\w./+~-]) (?P<opened>["']?)
    (?: -+[\w.-]+\s+(?!-) | [\w.+~-]+ (?P<closed>\\?["'])? (?: = | (?P<colon>\s*:(?P<space>\s*)) ) )""",
    re.VERBOSE,
)
_PIECE = re.compile(r"""\\. | "(?:[^"\\]|\\.)*" | '[^']*' | .""", re.VERBOSE | re.DOTALL)
# A password can contain a slash.
_USER = re.compile(r"(?<=://)([^\s/?#]+|[^\s/?#:@]*:\S+)(?=@)")


def shown(command: Sequence[str]) -> str:
    """A command line for a shell, safe to publish."""
    return shlex.join(_words(command))


def without_user(text: str) -> str:
    """`text` with the user and the password of each URL hidden: either can be a token."""
    return _USER.sub(HIDDEN, text)


def relative(path: str) -> str:
    """A path below the current folder relative to it; any other path unchanged."""
    try:
        return path.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the current folder was removed
        return path


def _words(command: Sequence[str]) -> Iterator[str]:
    option = ""
    for word in command:
        if option and not word.startswith("-"):
            yield HIDDEN if _is_secret(option, word) else _word(word)
        else:
            yield _word(word)
        option = word if word.startswith("-") and "=" not in word else ""


def _word(word: str) -> str:
    if (whole := _ASSIGNMENT.fullmatch(word)) is not None:
        name, value = whole.groups()
        return f"{name}={HIDDEN if _is_secret(name, value) else _word(value)}"
    return _value(word)


def _value(text: str) -> str:
    text, parts, end = without_user(relative(text)), [], 0
    # A value can contain names: {hub: {token: x}}.
    for name in _NAME.finditer(text):
        if name.start() < end or not (until := _value_end(text, name)):
            continue
        if _is_secret(name.group(), text[name.end() : until]):
            parts += [text[end : name.end()], HIDDEN]
            end = until
    return "".join([*parts, text[end:]])


def _value_end(text: str, name: re.Match[str]) -> int:
    """The end of a name's value in a shell, JSON, YAML or a header; 0 if there is none."""
    before = Counter(text[: name.start()])
    is_inside = before["{"] + before["["] > before["}"] + before["]"]
    if name["opened"] and not name["closed"]:
        ends = name["opened"]
    elif name["colon"] is None:
        ends = " \t\n;&|"
    elif is_inside:
        ends = ",]}"
    elif name["space"] or name["closed"] or "." not in name.group():
        ends = "\n"
    else:  # a function in a module
        return 0
    depth = 0
    for piece in _PIECE.finditer(text, name.end()):
        if depth == 0 and piece.group()[0] in ends:
            return piece.start() if piece.start() > name.end() else 0
        depth = max(0, depth + (piece.group() in "[{") - (piece.group() in "]}"))
    return len(text) if name.end() < len(text) else 0


def _is_secret(name: str, value: str) -> bool:
    """Whether the last word of an option's name says so; numbers of a plural such as `--max-tokens` are counts."""
    last = ["", *_WORD.findall(name)][-1].lower()
    if _SECRET.fullmatch(last) is not None:
        return True
    return _SECRET.fullmatch(last.removesuffix("s")) is not None and _COUNT.fullmatch(value) is None
