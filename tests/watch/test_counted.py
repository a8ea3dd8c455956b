"""Sums over targets, and whether they are divided by how many these are."""

import pytest

from .scripts import Script, total

STEPS = 6


def findings(divisors, targets, alone):
    """By step, what each rank's sums are divided by, and over how many targets. alone: what the step uses of the
    ranks' sum."""
    script = Script()
    for divisor, number in zip(divisors, targets, strict=True):
        computed = script.backward(factors=[1 / divisor], targets=0)
        for stream in script.streams:
            stream[-2].summed = number
        script.step([total(computed, alone)] * 2)
        script.clear()
    return script.findings()


def changing(found):
    return [note for note in found.notes if "are divided by numbers that change" in note]


@pytest.mark.parametrize(
    ("divisors", "targets", "alone", "expected"),
    [
        ([8, 9, 10, 11, 12, 13], [7, 8, 9, 10, 11, 12], 0.5, True),  # those of the step before
        ([8, 9, 10, 11, 12, 13], [8, 9, 10, 11, 12, 13], 0.5, False),
        ([16, 18, 20, 22, 24, 26], [8, 9, 10, 11, 12, 13], 1.0, False),  # of both ranks
        ([32] * 6, [8, 9, 10, 11, 12, 13], 0.5, False),  # some number of the script's own
    ],
)
def test_divisors_that_are_not_how_many_there_are(divisors, targets, alone, expected):
    found = findings(divisors, targets, alone)
    assert bool(changing(found)) == expected
    assert not [reason for reason in found.open if "sums over targets" in reason]


@pytest.mark.parametrize(
    ("targets", "undecided", "noted"),
    [
        ([8, 8, 8, 8, 8, 8], False, False),
        ([8, 8, 12, 8, 8, 8], True, False),  # some are in it twice
        ([8, 8, 8, 8, 8, 4], False, True),  # the end of an epoch
    ],
)
def test_steps_that_are_not_like_the_others(targets, undecided, noted):
    found = findings([8] * STEPS, targets, 0.5)
    assert any(reason.endswith("in other steps weigh 1.5 times as much") for reason in found.open) == undecided
    assert any(note.endswith("they weigh 0.5 times as much") for note in found.notes) == noted
    assert not found.causes
