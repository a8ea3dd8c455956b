"""Command lines as reports show them: without secrets, and with paths relative to the folder of the run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

HIDDEN = "REDACTED"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = re.compile(
    r".*(secret|token|password|passwd|passphrase|credential)|(api|access|auth|account|encryption|license|private|ssh)?key"
)
_COUNT = re.compile(r"[\d.,_]+(e\d+)?[kmbtg]?", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"([^\s=/'\"{]+)=(.+)", re.DOTALL)
# In a word that holds more than one value: a URL's query, JSON, a command for `sh -c`.
_WITHIN = re.compile(
    r"""(?<![\w./+~-]) (-+[\w.-]+\s+(?!-) | [\w.+~-]+ (?: ["']?= | ["']\s*:\s* | :\s+ ))
    (?= ("(?:[^"\\]|\\.)*" | '[^']*' | [^\s;&|"']+))""",
    re.VERBOSE,
)
_USER = re.compile(r"(?<=://)[^\s/?#]+(?=@)")


def shown(command: Sequence[str]) -> str:
    """A command line for a shell, safe to publish."""
    return shlex.join(_words(command))


def without_user(text: str) -> str:
    """`text`, with the user and the password of each URL hidden: a token can be either of them."""
    return _USER.sub(HIDDEN, text)


def relative(path: str) -> str:
    """A path below the current folder as seen from there; any other as it is."""
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
    # A value may hold further names: {hub: {token: x}}.
    for found in _WITHIN.finditer(text):
        if found.start() >= end and _is_secret(*found.groups()):
            parts += [text[end : found.start(2)], HIDDEN]
            end = found.end(2)
    return "".join([*parts, text[end:]])


def _is_secret(name: str, value: str) -> bool:
    """Whether the last word of an option's name says so; numbers under a plural, as of `--max-tokens`, are counts."""
    last = ["", *_WORD.findall(name)][-1].lower()
    singular = last.removesuffix("s")
    return _SECRET.fullmatch(singular) is not None and (singular == last or _COUNT.fullmatch(value) is None)
