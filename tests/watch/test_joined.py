"""What ranks that still have data make of those that have run out of it, right and wrong."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, sketches, total

LEFT = (0, 1)
"""Of three ranks."""


def laws(script):
    return {law for law, _ in script.findings().causes}


def joined():
    script = Script(ranks=3)
    script.each(records.Joined())
    return script


def steps(script, passes, of_all, of_fewer, factor_of_fewer=1.0, targets=None):
    """Six windows of all ranks, then six of two. of_all, of_fewer: by what each pass counts."""
    for ranks, weights in [((0, 1, 2), of_all)] * 6 + [(LEFT, of_fewer)] * 6:
        factors = [factor_of_fewer] if ranks == LEFT else []
        computed = [script.backward(factors=factors, targets=targets, ranks=ranks) for _ in range(passes)]
        micro_batches = [total([one[rank] for rank in ranks]) for one in computed]
        weighed = [total([one], weight) for one, weight in zip(micro_batches, weights, strict=True)]
        script.step([total(weighed)] * 3, ranks=ranks)
        script.clear()
    return laws(script)


THIRD = 1 / 3


@pytest.mark.parametrize(
    ("of_all", "of_fewer", "expected"),
    [
        ((THIRD, THIRD), (THIRD * 2 / 3, THIRD), {"watch/every-backward"}),
        ((THIRD, THIRD), (THIRD, THIRD), set()),
        ((THIRD, THIRD), (0.5, 0.5), set()),  # averaged over those that are left
        ((THIRD * 2 / 3, THIRD), (THIRD * 2 / 3, THIRD), set()),  # weights of the script's own
        ((THIRD, THIRD), (THIRD / 3, THIRD), set()),
    ],
)
def test_what_is_averaged_after_each_micro_batch(of_all, of_fewer, expected):
    assert steps(joined(), 2, of_all, of_fewer) == expected


@pytest.mark.parametrize(
    ("of_fewer", "factor", "expected"),
    [
        (0.5, 1.5, {"watch/means-averaged"}),
        (THIRD, 1.5, set()),
        (0.5, 1.0, set()),
        (THIRD, 1.0, set()),
    ],
)
def test_what_makes_up_for_ranks_twice(of_fewer, factor, expected):
    # The loss's factor shows in what is computed, too.
    script = joined()
    assert steps(script, 1, (THIRD,), (of_fewer,), factor, targets=8) == expected


@pytest.mark.parametrize(
    ("type_", "goes_on", "expected"),
    [
        ("ZeroRedundancyOptimizer", True, {"watch/fresh"}),
        ("ZeroRedundancyOptimizer", False, set()),
        ("SGD", True, set()),  # `Join` sends it the weights in the end
    ],
)
def test_a_part_that_is_stepped_on_old_gradients(type_, goes_on, expected):
    script = joined()
    used = None
    for ranks in [(0, 1, 2)] * 4 + [LEFT] * 4:
        computed = script.backward(ranks=ranks)
        average = total([computed[rank] for rank in ranks], THIRD)
        used = average if ranks != LEFT else used
        script.step([average, average, used], ranks=(0, 1, 2) if goes_on else ranks)
        script.streams[0].append(records.Cleared(script.numbers, script.versions, LINE))
        script.streams[1].append(records.Cleared(script.numbers, script.versions, LINE))
        for stream in script.streams:
            for record in stream:
                if isinstance(record, records.Stepped):
                    record.type = type_
                if isinstance(record, records.Optimizer):
                    record.type = type_
    assert laws(script) == expected


def test_gradients_that_one_rank_has_set_to_zero_are_cleared():
    """And those that another one adds, which has run out of data, are not."""
    script = Script()
    computed = script.backward()
    before = total(computed)
    script.step([before] * 2)
    for _ in range(3):
        script.streams[0].append(
            records.Left(script.numbers, script.numbers, "float32", sketches(total([before], 0.0)), [], script.numbers)
        )
        computed = script.backward(ranks=[0])
        before = total([computed[0], before])
        script.step([before] * 2)
    assert "watch/cleared" in laws(script)
