"""The terminal gets no foreign control characters."""

from __future__ import annotations

import io

import pytest
from rich.columns import Columns
from rich.table import Table
from rich.text import Text

from conformance.report.text import SafeConsole

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\ud800"


def test_whoever_prints_them():
    console = SafeConsole(file=io.StringIO(), width=200, force_terminal=True)
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE, "bold"))
    for one in (HOSTILE, Text(HOSTILE), table, Columns([Text(HOSTILE)])):
        console.print(one, markup=False)
    printed = console.file.getvalue()
    assert "\x1b[1m" in printed, "its own styles stay"
    for control in ("\x07", "\x9b", "\u202e", "\ud800", "\x1b]", "\x1b[2J"):
        assert control not in printed
    assert "\\u202egnp.exe" in printed


@pytest.mark.parametrize(
    ("environment", "colours"),
    [
        ({}, False),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "0"}, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_where_output_is_not_a_terminal(monkeypatch, environment, colours):
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    console = SafeConsole(file=io.StringIO(), width=80)
    console.print(Text("failed", "red"))
    assert console.file.getvalue() == ("\x1b[31mfailed\x1b[0m\n" if colours else "failed\n")
