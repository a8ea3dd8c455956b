"""The workloads about the ends of epochs: what else their design promises."""

from __future__ import annotations

from itertools import chain

import pytest

from conformance.workloads.short_ends import BATCH_SIZES, short_ends


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in BATCH_SIZES.items() for size in sizes])
def test_a_trace_shows_which_samples_were_read(name, size):
    """Else it would be a guess which ones fill up a last window, and which window a micro-batch belongs to."""
    samples = list(chain(*short_ends(name, size).batches))
    assert len({sample.x for sample in samples}) == len(samples)
