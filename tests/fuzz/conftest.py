"""The zygote that the tests share is ended after them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.runner.front.client import shared


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended() -> Iterator[None]:
    yield
    shared.close()
