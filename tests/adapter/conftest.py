"""A folder for trainer files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into an empty working directory; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__spec__", None)):
            del sys.modules[name]
