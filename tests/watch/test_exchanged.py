"""Parameters that have each other's gradients, as from a flat buffer that is taken apart in another order."""

import pytest

from conformance.watch.judging.findings import said
from conformance.watch.verdict import verdict

from .scripts import SHAPES, Script, total

ALIKE = (*SHAPES, *SHAPES)


def taken(order, factor=0.5, but=1.0):
    """A script that takes gradients out of a buffer in this order. but: a further factor of the first."""
    script = Script(shapes=ALIKE)
    for _ in range(3):
        computed = total(script.backward(), factor)
        used = [computed[number] for number in order]
        used[0] = used[0] * but
        script.step([used] * 2)
        script.clear()
    return script.findings()


RIGHT = [*range(len(ALIKE))]


def test_an_exchange_is_wrong():
    findings = taken([6, 1, 2, 3, 4, 5, 0, *RIGHT[7:]])
    assert {law for law, _ in findings.causes} == {"watch/own-gradient"}
    [cause] = findings.causes.values()
    assert cause.first.says == said("exchanged", names=["p0", "p6"], others=["p6", "p0"])


def test_several_at_once():
    findings = taken([*RIGHT[6:], *RIGHT[:6]])
    assert {law for law, _ in findings.causes} == {"watch/own-gradient"}


@pytest.mark.parametrize(
    ("order", "but", "expected"),
    [
        (RIGHT, 1.0, "CONFORMS"),
        # A gradient that two share, as copies of a layer do by hand.
        ([0, 1, 2, 3, 4, 5, 0, *RIGHT[7:]], 1.0, "UNDECIDED"),
        # No one factor.
        ([6, 1, 2, 3, 4, 5, 0, *RIGHT[7:]], 0.3, "UNDECIDED"),
    ],
)
def test_what_is_no_exchange_is_not_accused(order, but, expected):
    assert verdict(taken(order, but=but)) == expected
