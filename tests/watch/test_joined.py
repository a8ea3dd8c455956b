"""Steps after some ranks ran out of data."""

import pytest

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, laws, sketches, total

FRESH, SHARED = {"watch/fresh"}, "ZeroRedundancyOptimizer"

LEFT, THIRD = (0, 1), 1 / 3
"""The ranks of three that still have data, and the weight of each of three."""


def joined(passes, of_all, of_fewer, factor_of_fewer=1.0, targets=None, factor_of_all=1.0):
    """Six windows of all ranks, then six of two. of_all, of_fewer: the factor of each pass. factor_of_all,
    factor_of_fewer: of their losses."""
    script = Script(ranks=3)
    script.each(records.Joined())
    for ranks, weights in [((0, 1, 2), of_all)] * 6 + [(LEFT, of_fewer)] * 6:
        factors = [factor_of_fewer if ranks == LEFT else factor_of_all]
        computed = [script.backward(factors=factors, targets=targets, ranks=ranks) for _ in range(passes)]
        micro_batches = [total([one[rank] for rank in ranks]) for one in computed]
        weighed = [total([one], weight) for one, weight in zip(micro_batches, weights, strict=True)]
        script.step([total(weighed)] * 3, ranks=ranks)
        script.clear()
    return laws(script.findings())


@pytest.mark.parametrize(
    ("of_all", "of_fewer", "expected"),
    [
        ((THIRD, THIRD), (THIRD, THIRD), set()),
        ((THIRD, THIRD), (0.5, 0.5), set()),  # averaged over the remaining ranks
        ((THIRD * 2 / 3, THIRD), (THIRD * 2 / 3, THIRD), set()),  # weights in the script
        ((THIRD, THIRD), (THIRD / 3, THIRD), set()),
    ],
)
def test_averages_over_fewer_ranks(of_all, of_fewer, expected):
    assert joined(2, of_all, of_fewer) == expected


@pytest.mark.parametrize(
    ("of_fewer", "factor", "expected"),
    [(THIRD, 1.5, set()), (0.5, 1.0, set()), (THIRD, 1.0, set()), (0.5, 1.5, {"watch/averaged-once"})],
)
def test_factors_that_compensate_for_missing_ranks(of_fewer, factor, expected):
    # The factor of the loss also shows in the gradients.
    assert joined(1, (THIRD,), (of_fewer,), factor, targets=8) == expected


def test_a_factor_of_all_losses_does_not_compensate_for_missing_ranks():
    assert joined(1, (THIRD,), (0.5,), 1.5, targets=8, factor_of_all=1.5) == set()


@pytest.mark.parametrize(
    ("kind", "continues", "expected"),
    [(SHARED, False, set()), ("SGD", True, set())],  # `Join` sends it the weights in the end
)
def test_a_rank_without_data_steps_on_old_gradients(kind, continues, expected):
    script = Script(ranks=3)
    script.each(records.Joined())
    used = None
    for ranks in [(0, 1, 2)] * 4 + [LEFT] * 4:
        computed = script.backward(ranks=ranks)
        average = total([computed[rank] for rank in ranks], THIRD)
        used = average if ranks != LEFT else used
        script.step([average, average, used], ranks=(0, 1, 2) if continues else ranks)
        for rank in LEFT:
            script.streams[rank].append(records.Cleared(script.numbers, script.versions, LINE))
    for record in (one for stream in script.streams for one in stream):
        if isinstance(record, records.Stepped | records.Optimizer):
            record.type = kind
    assert laws(script.findings()) == expected


def test_an_average_that_is_wrong_without_a_rank_states_the_weight_of_each_pass():
    script = Script()
    script.each(records.Joined())
    for ranks in [(0, 1)] * 3 + [(0,)] * 2:
        first, second = (script.backward(ranks=ranks) for _ in range(2))
        weights = (0.5, 0.5) if len(ranks) > 1 else (0.25, 0.5)
        weighed = [total([one[rank] for rank in ranks], by) for one, by in zip((first, second), weights, strict=True)]
        script.step([total(weighed)] * 2, ranks=ranks)
        script.clear()
    assert script.findings().open["ranks.run-out"].says.values == {"table": "rank 0: 0.5, 1"}


@pytest.mark.parametrize(("rejoins", "expected"), [(True, "CONFORMS"), (False, "UNDECIDED")])
def test_after_ranks_waited_their_next_steps_belong_together(rejoins, expected):
    script = Script()
    script.each(records.Joined())
    for _ in range(2):
        for ranks in [(0, 1)] * 3 + [(0,)] * 2:
            computed = script.backward(ranks=ranks)
            script.step([total([computed[rank] for rank in ranks], 0.5)] * 2, ranks=ranks)
            script.clear()
        if rejoins:
            script.each(records.Rejoined())
    assert verdict(script.findings()) == expected


def test_gradients_that_only_one_rank_sets_to_zero():
    """The other rank ran out of data and still adds its old gradients."""
    script = Script()
    before = total(script.backward())
    script.step([before] * 2)
    for _ in range(3):
        zeros = sketches(total([before], 0.0))
        script.streams[0].append(records.Left(script.numbers, script.numbers, "float32", zeros, [], script.numbers))
        before = total([script.backward(ranks=[0])[0], before])
        script.step([before] * 2)
    assert "watch/cleared" in laws(script.findings())
