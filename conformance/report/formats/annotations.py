"""Annotations of GitHub Actions: a message at the line of the trainer that a cause names.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from collections.abc import Iterator

from ..digest import Digest


def annotations(digest: Digest) -> Iterator[str]:
    """A line for each cause, for standard output."""
    for card in digest.cards:
        at = {"title": f"{card.verdict}: {card.title}"}
        if card.own_line is not None:
            at = {"file": card.own_line[0], "line": str(card.own_line[1]), **at}
        properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in at.items())
        text = "\n".join([*list(card.lines())[1:], card.extent])
        yield f"::error {properties}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
