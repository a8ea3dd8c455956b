"""What is accumulated so far is reduced or divided after each micro-batch; a rank whose gradients nobody uses."""

import pytest

from conformance.watch.verdict import verdict

from .scripts import Script, total


def accumulated(after_each, ranks=2, micro_batches=4):
    """after_each: the factor that all that is accumulated gets after each micro-batch."""
    script = Script(ranks=ranks)
    for _ in range(3):
        used = None
        for _ in range(micro_batches):
            computed = total(script.backward(), 1 / ranks)
            used = total([computed if used is None else total([used, computed])], after_each)
        script.step([used] * ranks)
        script.clear()
    return script.findings()


@pytest.mark.parametrize(
    ("after_each", "ranks", "micro_batches", "code"),
    [
        (2.0, 2, 4, "summed-again"),
        (0.25, 1, 4, "divided-again"),
        (0.25, 2, 4, "divided-again"),
        (1 / 3, 1, 3, "divided-again"),
    ],
)
def test_what_is_done_again_after_each_micro_batch_is_wrong(after_each, ranks, micro_batches, code):
    [cause] = accumulated(after_each, ranks, micro_batches).causes.values()
    assert (cause.first.law, cause.first.says.code) == ("watch/every-backward", code)


@pytest.mark.parametrize(
    ("after_each", "ranks", "micro_batches"),
    [
        (0.9, 1, 4),  # gradients that fade by hand
        (0.5, 2, 4),
        (2.0, 1, 4),
        (2.0, 2, 2),  # two factors are a series whatever they are
        (0.5, 1, 2),
    ],
)
def test_a_script_may_weigh_micro_batches_as_it_likes(after_each, ranks, micro_batches):
    assert verdict(accumulated(after_each, ranks, micro_batches)) == "UNDECIDED"


@pytest.mark.parametrize(
    ("weights", "ranks"),
    [
        ((1 / 9, 1 / 3, 1.0), 1),  # gradients that fade, and the newest in full
        ((4 / 7, 2 / 7, 1 / 7), 1),
        ((0.5, 0.25, 0.125), 2),  # the first counts most, in an average over two ranks
    ],
)
def test_weights_that_are_powers_on_purpose(weights, ranks):
    script = Script(ranks=ranks)
    for _ in range(3):
        used = total([total(script.backward(), weight / ranks) for weight in weights])
        script.step([used] * ranks)
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


def broadcast(source, ranks=2):
    """All ranks step on the gradients of one."""
    script = Script(ranks=ranks)
    for _ in range(3):
        computed = script.backward()
        script.step([computed[source]] * ranks)
        script.clear()
    return script.findings()


@pytest.mark.parametrize("source", [0, 1])
def test_gradients_of_one_rank_are_sent_to_all(source):
    findings = broadcast(source)
    assert {law for law, _ in findings.causes} == {"watch/averaged"}
    [cause] = findings.causes.values()
    assert cause.ranks == {1 - source}


def test_ranks_that_each_step_on_their_own_and_stay_equal_are_not_accused():
    script = Script()
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"
