"""A factor that looks like a mistake is one if the script makes it in each step."""

from types import SimpleNamespace

import pytest

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.proof import Steady
from conformance.watch.verdict import verdict

from .scripts import Script, total


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([0.25, 0.25, 0.25], "DOES NOT CONFORM"),
        ([0.25], "DOES NOT CONFORM"),
        ([0.25, 0.5, 0.25], "DOES NOT CONFORM"),
        ([0.5, 0.25, 0.5], "UNDECIDED"),
        ([0.25, 0.25, 0.3], "UNDECIDED"),
        ([0.5, 0.5, 0.5], "CONFORMS"),
    ],
)
def test_what_two_ranks_computed_is_divided_by_four(factors, expected):
    script = Script()
    for factor in factors:
        script.step([total(script.backward(), factor)] * 2)
        script.clear()
    findings = script.findings()
    assert verdict(findings) == expected
    assert {law for law, _ in findings.causes} <= {"watch/averaged-once"}


def test_the_count_is_that_of_all_steps():
    script = Script()
    for _ in range(3):
        script.step([total(script.backward(), 0.25)] * 2)
        script.clear()
    [cause] = script.findings().causes.values()
    assert (cause.count, cause.ranks, cause.first.step) == (6, {0, 1}, 0)
    assert cause.first.effect == said("factor", factor=0.5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("ww", False), ("www", True), ("rwww", True), ("wwwo", False), ("wwwv", False), ("rrr", False)],
)
def test_a_run_is_ended_once_several_steps_say_the_same(steps, expected):
    """Of right (r) and wrong (w) steps, those of another factor (o) and those that break another law (v)."""
    window = SimpleNamespace(optimizer=0, rank=0, index=0, moments=[], cut=0)
    says = {
        "w": (0, Finding("watch/averaged-once", said("no-gradient"), 0, (0,)), False),
        "v": (0, Finding("watch/divided-once", said("no-gradient"), 0, (0,)), False),
        "r": (0, None, True),
        "o": (0, None, False),
    }
    steady = Steady(Findings())
    for step in steps:
        steady.feed([says[step]], [window])
    assert steady.accuses == expected


@pytest.mark.parametrize(("other", "code"), [(True, "coverage.some-steps"), (False, "ranks.varies")])
def test_steps_without_gradients_next_to_right_ones(other, code):
    """other: all others are right."""
    window = SimpleNamespace(optimizer=0, rank=0, index=0, moments=[], cut=0)
    findings = Findings()
    steady = Steady(findings)
    without = Finding("watch/has-gradient", said("no-gradient"), 0, (0,))
    for one in (without, None, without):
        steady.feed([(0, one, one is None and other)], [window])
    steady.finish()
    assert [*findings.open] == [code]
