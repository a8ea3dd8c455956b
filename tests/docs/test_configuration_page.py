"""The page on `[tool.conformance]`: its example is valid and complete."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.suite.configuration import _OPTIONS, configuration
from conformance.watch.judging.properties import Property
from conformance.watch.verdict import stated

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_example_is_read(tmp_path: Path) -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(example)
    found = configuration(tmp_path)
    assert found.values.keys() == _OPTIONS.keys() - {"traces"}
    assert len(found.expected) == 2
    assert dict(stated(f"{name}={value}") for name, value in found.watch.items()).keys() == {
        Property.RANKS,
        Property.DATA,
    }


def test_each_key_has_its_row() -> None:
    table = re.findall(r"^\| Key \|.*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", table[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.+?)`", row)} == _OPTIONS.keys()
