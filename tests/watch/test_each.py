"""Some parameters have a factor of their own, and all others are as they should be."""

import pytest

from conformance.watch.verdict import verdict

from .scripts import Script, total


def of_steps(ratio, numbers, sparse, ranks=2, rates=None):
    """A script whose steps use `ratio` times the average for the parameters with these numbers."""
    script = Script(ranks)
    for _ in range(3):
        computed = script.backward()
        for stream in script.streams:
            stream[-1].sparse = [*sparse]
        used = total(computed, 1 / ranks)
        script.step([[one * ratio if n in numbers else one for n, one in enumerate(used)]] * ranks)
        for stream in script.streams:
            stream[-1].rates = rates or stream[-1].rates
        script.clear()
    return script.findings()


@pytest.mark.parametrize(
    ("ratio", "numbers", "sparse", "ranks", "rates", "expected"),
    [
        (2.0, (1, 4), (1, 4), 2, None, "DOES NOT CONFORM"),
        (3.0, (1,), (1,), 3, None, "DOES NOT CONFORM"),
        (2.0, (1,), (1, 4), 2, None, "UNDECIDED"),
        (2.0, (1, 4), (), 2, None, "UNDECIDED"),
        (1.5, (1, 4), (1, 4), 2, None, "UNDECIDED"),
        (2.0, (1, 4), (1, 4), 2, [0.1, 0.05], "UNDECIDED"),
        (2.0, (1, 4), (1, 4), 1, None, "UNDECIDED"),
        (1.0, (1, 4), (1, 4), 2, None, "CONFORMS"),
    ],
)
def test_sparse_gradients_that_are_summed(ratio, numbers, sparse, ranks, rates, expected):
    found = of_steps(ratio, numbers, sparse, ranks, rates)
    assert verdict(found) == expected
    assert {law for law, _ in found.causes} == ({"watch/means-averaged"} if expected == "DOES NOT CONFORM" else set())


def test_parameters_with_a_factor_of_their_own_are_named():
    assert of_steps(0.5, (1, 4), ()).open["ranks.some-parameters"].says.values == {"names": ["p1", "p4"]}
