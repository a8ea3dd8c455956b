"""Numbers in words, as a reader should see them."""

from __future__ import annotations

import pytest

from conformance.trace.words import size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (12, "12 B"), (2.5, "2.5 B"), (999.4, "999 B"), (999.7, "1 kB"), (1000, "1 kB"), (1234, "1.23 kB"),
        (999_499, "999 kB"), (999_700, "1 MB"), (5e7, "50 MB"), (999.7e6, "1 GB"), (1.5e9, "1.5 GB"),
    ],
)  # fmt: skip
def test_size(count: float, shown: str) -> None:
    assert size(count) == shown
