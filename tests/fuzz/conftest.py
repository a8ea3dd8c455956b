"""The programs are fixtures, a package beside this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.runner.front.client import shared

sys.path.append(str(Path(__file__).parents[2] / "fixtures"))


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended() -> Iterator[None]:
    yield
    shared.close()
