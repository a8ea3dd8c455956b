"""Servers that run mutants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.suite.servers import Servers


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()
