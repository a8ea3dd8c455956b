"""Each rank steps a share of the parameters, and clips what it steps."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total

SHARES = ([0, 1, 2], [3, 4, 5])


@pytest.mark.parametrize(
    ("kind", "parts", "norms", "limit", "expected"),
    [
        ("ZeroRedundancyOptimizer", SHARES, (3.0, 8.0), 4.0, {"watch/one-factor"}),
        # The norm may be the largest element, and then the limit is above that of all.
        ("ZeroRedundancyOptimizer", SHARES, (3.0, 3.5), 4.0, set()),
        ("ZeroRedundancyOptimizer", SHARES, (3.0, 8.0), 10.0, set()),
        ("ZeroRedundancyOptimizer", SHARES, (5.0, 5.0), 4.0, set()),  # that of all, as it was told
        ("SGD", SHARES, (5.0, 5.0), 4.0, {"watch/one-factor"}),  # here each rank steps all of them
        ("ZeroRedundancyOptimizer", ([0, 1, 2, 3, 4, 5],) * 2, (8.0, 8.0), 4.0, set()),
    ],
)
def test_shares_that_are_clipped_by_their_own_norms(kind, parts, norms, limit, expected):
    script = Script()
    for _ in range(3):
        used = total(script.backward(), 0.5)
        for stream, numbers, norm in zip(script.streams, parts, norms, strict=True):
            stream.append(records.Clipped("norm", [*numbers], limit, norm, len(numbers), LINE))
        steps = []
        for numbers, norm in zip(parts, norms, strict=True):
            factor = min(1.0, limit / (norm + 1e-6))
            steps.append([one * factor if n in numbers else one for n, one in enumerate(used)])
        script.step(steps)
        for stream in script.streams:
            stream[-1].type = kind
        script.clear()
    assert {law for law, _ in script.findings().causes} & {"watch/one-factor"} == expected
