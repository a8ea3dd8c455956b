"""The report as Markdown, for the summary of a job or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..card import Card
from ..digest import Digest
from ..text import one_line, visible

#: More than this many causes, and a reader opens the report.
_MOST = 20


def markdown(digest: Digest) -> str:
    """GitHub's flavour."""
    return "\n".join(_lines(digest)) + "\n"


#: In which nothing is taken for Markdown; a bar would end the cell of a table all the same.
_CODE = re.compile(r"(`[^`|]+`)")
_SIGNS = re.compile(r"[\\`*_\[\]<>#|~&]")


def escaped(text: str) -> str:
    """Text on one line, without what Markdown or HTML would take for its own; what stands between backticks is code."""
    parts = _CODE.split(one_line(text))
    return "".join(part if number % 2 else _SIGNS.sub(r"\\\g<0>", part) for number, part in enumerate(parts))


def _lines(digest: Digest) -> Iterator[str]:
    yield f"## {digest.summary.title}\n"
    yield escaped(digest.summary.detail) + "\n"
    if digest.cut_off:
        yield f"**Incomplete: {escaped(digest.cut_off)}. This is not evidence of conformance.**\n"
    for card in digest.cards[:_MOST]:
        yield from _card(card)
    if len(digest.cards) > _MOST:
        yield f"and {len(digest.cards) - _MOST} causes more, in the report\n"
    yield f"| Verdict | {digest.unit} |\n| --- | ---: |"
    yield from (f"| {escaped(what)} | {count} |" for what, count in digest.tally)
    if digest.extent is not None:
        yield f"\n{escaped(digest.extent)}"


def _card(card: Card) -> Iterator[str]:
    yield f"### {escaped(card.verdict)}: {escaped(card.title)}\n"
    if card.where:
        yield f"At {_code(card.where)}\n"
    if card.seen:
        yield f"Seen at {_code(card.seen)}\n"
    if card.source:
        yield _fenced("\n".join(card.source_lines()), "text") + "\n"
    yield from (f"{escaped(line)}\n" for detail in card.details for line in visible(detail).splitlines())
    if card.effect:
        yield f"**Effect** {escaped(card.effect)}\n"
    if card.fix:
        yield f"**Fix**\n\n{_fenced(card.fix, 'python')}\n"
    if card.advice:
        yield f"**Fix** {escaped(card.advice)}\n"
    yield from (f"Also: {escaped(text)}\n" for text in card.also)
    _, again = card.commands[-1]
    yield f"{escaped(card.extent)}\n\n{_fenced(again, 'sh')}\n"


def _code(text: str) -> str:
    return f"`{one_line(text).replace('`', '')}`"


def _fenced(text: str, language: str) -> str:
    """A block whose fence is longer than any in the text."""
    shown = visible(text)
    fence = "```"
    while fence in shown:
        fence += "`"
    return f"{fence}{language}\n{shown}\n{fence}"
