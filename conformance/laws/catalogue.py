"""The laws as a page of Markdown: ``python -m conformance.laws.catalogue > docs/LAWS.md``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conformance.laws.law import CHAPTERS, Law, laws
from conformance.laws.permissions import PERMISSIONS

_HEAD = """# Laws

What a trainer may not do, even if its numbers come out right, and why. Each run of a case records a trace on every
rank, and each law is checked against these traces. A trainer that breaks a MUST fails; a broken SHOULD is a warning. A
law that gives way to others is not reported where one of them is broken too, because they explain the mistake better.

This page is generated: `python -m conformance.laws.catalogue > docs/LAWS.md`. In a terminal, `conformance laws` lists
the laws and `conformance explain` prints one."""

_PERMISSIONS = """## Permissions

What no law flags. Each line links to a correct trainer that does it; the tests run them all."""


def catalogue() -> str:
    """The page."""
    return "\n\n".join([_HEAD, _contents(), *map(_chapter, _chapters()), _PERMISSIONS, _permissions()]) + "\n"


def _chapters() -> Iterator[str]:
    return (chapter for chapter in CHAPTERS if _laws_of(chapter))


def _laws_of(chapter: str) -> list[Law]:
    return [law for law in laws() if law.chapter == chapter]


def _contents() -> str:
    rows = [
        f"| [{law.id}](#{_anchor(law.id)}) | {_cell(law.says)} |"
        for chapter in _chapters()
        for law in _laws_of(chapter)
    ]
    return "\n".join(["| Law | |", "| --- | --- |", *rows])


def _anchor(heading: str) -> str:
    return heading.replace("/", "")


def _chapter(chapter: str) -> str:
    return "\n\n".join([f"## {CHAPTERS[chapter]}", *map(_law, _laws_of(chapter))])


def _law(law: Law) -> str:
    return "\n\n".join(
        [f"### {law.id}", f"**{law.says}**", law.why, *_better(law), f"Source: {law.source}.", _snippet(law)]
    )


def _better(law: Law) -> list[str]:
    better = ", ".join(f"[{id}](#{_anchor(id)})" for id in law.unless)
    return [f"Gives way to {better}."] if better else []


def _snippet(law: Law) -> str:
    return f"```python\n{law.fix}\n```"


def _permissions() -> str:
    return "\n".join(
        f"- {each.says} ([{Path(each.variant).stem}](../fixtures/variants/{each.variant}))" for each in PERMISSIONS
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(catalogue(), end="")
