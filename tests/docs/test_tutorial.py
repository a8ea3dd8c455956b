"""The tutorial shows what its commands print, and the README's picture is one of them."""

from __future__ import annotations

from tools.shown import PAGE, PICTURE, renewed


def test_the_tutorial_is_what_its_commands_print() -> None:
    """Otherwise run: python -m tools.shown."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == (page, PICTURE.read_text(encoding="utf-8"))
