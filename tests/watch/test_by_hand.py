"""What a script may do by hand with its gradients is no proof against it."""

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, gradients, total


def weighed(computed, *weights):
    """The same on all ranks: the sum of each rank's gradients times its weight."""
    return [total([total([of_rank], weight) for of_rank, weight in zip(computed, weights, strict=True)])] * 2


def test_ranks_may_count_by_their_samples():
    script = Script()
    for _ in range(3):
        script.step(weighed(script.backward(), 0.625, 0.375))
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


def test_what_is_cleared_may_have_been_kept():
    script = Script()
    for _ in range(3):
        kept = script.backward()
        script.clear()
        script.step([total([*kept, *script.backward()], 0.25)] * 2)
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


def test_what_is_cleared_may_have_been_clipped():
    script = Script()
    for _ in range(3):
        script.backward()
        script.each(records.Clipped("norm", script.numbers, 1.0, 4.0, len(script.numbers), LINE))
        script.clear()
        script.step([gradients(script.steps)] * 2)
        script.clear()
    assert not script.findings().causes


def test_gradients_may_be_put_in_by_hand():
    script = Script()
    for _ in range(3):
        script.step([gradients(script.steps)] * 2)
    assert verdict(script.findings()) == "UNDECIDED"


def test_ranks_that_may_run_out_of_data_are_not_compared():
    script = Script(drift=0.1)
    script.each(records.Joined())
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"
