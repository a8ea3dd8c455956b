"""The laws explain themselves: in the terminal, on the page that is generated, with snippets that are Python."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from conformance.cli import main
from conformance.laws.law import catalogue, laws
from fixtures.specimens import read
from tools import results_schema as schema

ROOT = Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("laws_page", ROOT / "tools" / "laws_page.py")
assert spec is not None
assert spec.loader is not None
laws_page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laws_page)


def said(capsys, *words):
    code = main(words)
    output = capsys.readouterr()
    return code, output.out, output.err


def joined(text):
    """The words of wrapped text on one line."""
    return " ".join(text.split())


def test_the_page_is_that_of_the_code():
    """Otherwise run: python tools/laws_page.py."""
    assert laws_page.PAGE.read_text(encoding="utf-8") == laws_page.page()
    assert laws_page.PROPERTIES.read_text(encoding="utf-8") == laws_page.properties()


def test_the_page_has_every_law_and_permission():
    page = laws_page.page()
    assert re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE) == [law.id for law in catalogue()]
    assert all(says in page for says in laws_page.PERMISSIONS.values())


@pytest.mark.parametrize("law", laws(), ids=lambda law: law.id)
def test_a_law_is_told_in_full(law):
    ast.parse(law.fix)
    assert law.advice and not law.advice.endswith(".")
    assert law.fault and not law.fault.endswith(".") and not re.search(r"MUST|SHOULD", law.fault)
    assert law.says.endswith(".") and law.why.endswith((".", ".)")) and not law.source.endswith(".")
    assert law.source.startswith(("PyTorch", "Determined", "Horovod", "apex"))


@pytest.mark.parametrize(("variant", "says"), laws_page.PERMISSIONS.items())
def test_a_permission_has_a_correct_trainer_that_shows_it(variant, says):
    assert says.count("MAY") == 1
    assert read(ROOT / "fixtures/variants" / variant).laws == frozenset()


def test_permissions_are_many_and_differ():
    assert len(set(laws_page.PERMISSIONS.values())) == len(laws_page.PERMISSIONS) >= 25


def test_all_laws_are_listed_by_chapter(capsys):
    code, out, _ = said(capsys, "laws")
    assert code == 0
    ids = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and "/" in line[:12]]
    assert ids == [law.id for law in catalogue()]
    assert "Gradients MUST be unscaled before they are clipped." in joined(out.partition("amp/unscale-before-clip")[2])


@pytest.mark.parametrize("words", [("laws",), ("explain", "amp"), ("explain", "watch/averaged")])
def test_laws_as_json(capsys, words):
    code, out, _ = said(capsys, *words, "--format", "json")
    document = json.loads(out)
    Draft202012Validator(json.loads((schema.OUTPUTS / "laws.json").read_text())).validate(document)
    found = [law.id for law in catalogue() if {*words[1:]} <= {law.id, law.chapter}]
    assert (code, [law["id"] for law in document["laws"]]) == (0, found)


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
