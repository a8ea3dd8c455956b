"""Messages are for people: no code decides by their words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import conformance

PACKAGE = Path(conformance.__file__).parent

#: Attributes with a sentence: of records, judgements, findings, laws, cards and facts.
SENTENCES = frozenset(
    {
        "headline",
        "expected",
        "observed",
        "why",
        "says",
        "title",
        "detail",
        "details",
        "effect",
        "advice",
    }
)
#: A law states its level in the sentence by one of these words: the only words that are data.
LEVELS = ("MUST", "SHOULD")
#: Methods that look into a text.
SEARCHES = frozenset({"search", "match", "fullmatch", "findall", "finditer", "sub", "split", "partition", "rpartition"})
SEARCHES |= frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count", "replace"})


def reads(source: str) -> Iterator[int]:
    """The lines in which code looks into a sentence: by a method of a text, a regular expression or `in`."""
    for node in ast.walk(ast.parse(source)):
        looked_into: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=text), args=arguments) if method in SEARCHES:
                words = [one.value for one in arguments if isinstance(one, ast.Constant)]
                looked_into = [] if words and words[0] in LEVELS else [text, *arguments]
            case ast.Compare(left=ast.Constant(value=str(word)), ops=[ast.In() | ast.NotIn()], comparators=[text]):
                looked_into = [] if word in LEVELS else [text]
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
                looked_into = [text]
        if any(isinstance(one, ast.Attribute) and one.attr in SENTENCES for one in looked_into):
            yield node.lineno


def test_no_code_looks_into_a_message():
    files = PACKAGE.rglob("*.py")
    found = [f"{file.relative_to(PACKAGE)}:{line}" for file in files for line in reads(file.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "re.search('raised .*', case.headline)",
        "_LINE.findall(case.headline)",
        "case.headline.startswith('rank')",
        "'killed' in finding.observed",
        "card.title.partition(':')[0]",
    ],
)
def test_code_that_does_would_be_found(source):
    assert [*reads(f"case = card = finding = None\n{source}")][:1] == [2]
