"""The laws explain themselves: in the terminal, on the page that is generated, with snippets that are Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.laws.catalogue import catalogue
from conformance.laws.law import CHAPTERS, laws
from conformance.laws.permissions import PERMISSIONS
from fixtures.specimens import read

ROOT = Path(__file__).parents[2]


def said(capsys, *words):
    code = main(words)
    output = capsys.readouterr()
    return code, output.out, output.err


def joined(text):
    """The words of wrapped text on one line."""
    return " ".join(text.split())


def test_the_page_is_that_of_the_code():
    assert (ROOT / "docs/LAWS.md").read_text() == catalogue(), "python -m conformance.laws.catalogue > docs/LAWS.md"


def test_the_page_has_every_law_and_permission():
    page = catalogue()
    headings = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    assert headings == [law.id for chapter in CHAPTERS for law in laws() if law.chapter == chapter]
    assert all(permission.says in page for permission in PERMISSIONS)


@pytest.mark.parametrize("law", laws(), ids=lambda law: law.id)
def test_a_law_is_told_in_full(law):
    ast.parse(law.fix)
    assert law.says.endswith(".") and law.why.endswith((".", ".)")) and not law.source.endswith(".")
    assert law.source.startswith(("PyTorch", "Determined", "Horovod", "apex"))


@pytest.mark.parametrize("permission", PERMISSIONS, ids=lambda permission: permission.name)
def test_a_permission_has_a_correct_trainer_that_shows_it(permission):
    assert permission.says.count("MAY") == 1
    assert read(ROOT / "fixtures/variants" / permission.variant).laws == frozenset()


def test_permissions_are_told_apart():
    assert len({permission.name for permission in PERMISSIONS}) == len(PERMISSIONS)
    assert len({permission.variant for permission in PERMISSIONS}) == len(PERMISSIONS) >= 25


def test_all_laws_are_listed_by_chapter(capsys):
    code, out, _ = said(capsys, "laws")
    assert code == 0
    ids = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and "/" in line[:12]]
    assert ids == [law.id for chapter in CHAPTERS for law in laws() if law.chapter == chapter]
    assert "Gradients MUST be unscaled before they are clipped." in joined(out.partition("amp/unscale-before-clip")[2])


def test_one_law_is_explained(capsys):
    code, out, _ = said(capsys, "explain", "amp/unscale-before-clip")
    law = next(law for law in laws() if law.id == "amp/unscale-before-clip")
    assert code == 0
    for text in (law.says, law.why, law.source):
        assert text in joined(out)
    assert all(line in out for line in law.fix.splitlines())


def test_a_chapter_is_listed(capsys):
    code, out, _ = said(capsys, "explain", "clip")
    assert code == 0
    assert "clip/once-per-window" in out
    assert "amp/" not in out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("amp/unscale-before-clop", "did you mean amp/unscale-before-clip"),
        ("unscale-before-clip", "did you mean amp/unscale-before-clip"),
        ("ampp", "did you mean amp"),
        ("zzz", "`conformance laws` lists them"),
    ],
)
def test_an_unknown_law_is_one_line(capsys, name, line):
    code, out, err = said(capsys, "explain", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"conformance: there is no law {name!r}: {line}")
    assert err.count("\n") == 1
