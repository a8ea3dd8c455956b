"""Servers that run mutants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.results.result_lines import CaseRecord
from conformance.suite.servers import Servers


class Once(Servers):
    """Servers whose failed cases are not run again: no line is read here."""

    def is_first(self, failed: CaseRecord) -> bool:
        return False


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Once()
    yield servers
    servers.close()
