"""Annotations of GitHub Actions: a message at the line of the trainer that a cause names.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from collections.abc import Callable, Iterator

from ..card import Card
from ..digest import Digest
from ..text import visible


def annotations(digest: Digest, is_expected: Callable[[Card], bool] = lambda card: False) -> Iterator[str]:
    """A line for each cause, for standard output; what is expected to fail is no error."""
    for card in digest.cards:
        at = {"title": f"{card.verdict}: {card.title}"}
        if card.own_line is not None:
            at = {"file": card.own_line[0], "line": str(card.own_line[1]), **at}
        properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in at.items())
        text = "\n".join([*list(card.lines())[1:], card.extent])
        yield f"::{'notice' if is_expected(card) else 'error'} {properties}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    text = visible(text)
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
