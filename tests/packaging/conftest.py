from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel under test, by nox; outside nox, a new one."""
    path = os.environ.get("CONFORMANCE_WHEEL")
    if path is None:
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
        subprocess.run(command, check=True, capture_output=True)
        [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="session")
def sessions(root: Path) -> list[str]:
    """The names of nox's sessions, in running order."""
    command = [sys.executable, "-m", "nox", "--list-sessions", "--json"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return [entry["session"] for entry in json.loads(listed.stdout)]


@pytest.fixture(scope="session")
def optional_sessions(root: Path) -> list[str]:
    """Sessions that run only when named."""
    command = [sys.executable, "-m", "nox", "--list"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return re.findall(r"^- (\S+)", listed.stdout, re.MULTILINE)
