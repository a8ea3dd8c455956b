"""The report of a run as Markdown, for the summary of a job or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.results import Results

from ..card import Card, cards, counted
from ..grouping import overall
from ..summary import extent, summary
from ..text import one_line, visible

#: More than this many causes, and a reader opens the report.
_MOST = 20


def markdown(results: Results) -> str:
    """GitHub's flavour."""
    return "\n".join(_lines(results)) + "\n"


def escaped(text: str) -> str:
    """Text on one line, without what Markdown or HTML would take for its own."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|~&" else sign for sign in one_line(text))


def _lines(results: Results) -> Iterator[str]:
    whole = summary(results)
    yield f"## {whole.title}\n"
    yield escaped(whole.detail) + "\n"
    if results.cut_off:
        yield f"**Incomplete: {escaped(results.cut_off)}. This is not evidence of conformance.**\n"
    found = cards(results)
    for card in found[:_MOST]:
        yield from _card(card)
    if len(found) > _MOST:
        yield f"and {len(found) - _MOST} causes more, in the report\n"
    yield "| Verdict | Cases |\n| --- | ---: |"
    yield from (f"| {look.glyph} {look.verdict} | {count} |" for look, count in overall(results))
    if (ran := extent(results)) is not None:
        yield f"\n{escaped(ran)}"


def _card(card: Card) -> Iterator[str]:
    yield f"### {escaped(card.verdict)}: {escaped(card.title)}\n"
    if card.where:
        yield f"At {_code(card.where)}\n"
    if card.source:
        yield _fenced("\n".join(card.source_lines()), "text") + "\n"
    yield from (f"{escaped(line)}\n" for detail in card.details for line in visible(detail).splitlines())
    if card.effect:
        yield f"**Effect** {escaped(card.effect)}\n"
    if card.fix:
        yield f"**Fix**\n\n{_fenced(card.fix, 'python')}\n"
    yield f"{escaped(counted(card.cases))}\n\n{_fenced(card.example.command, 'sh')}\n"


def _code(text: str) -> str:
    return f"`{one_line(text).replace('`', '')}`"


def _fenced(text: str, language: str) -> str:
    """A block whose fence is longer than any in the text."""
    shown = visible(text)
    fence = "```"
    while fence in shown:
        fence += "`"
    return f"{fence}{language}\n{shown}\n{fence}"
