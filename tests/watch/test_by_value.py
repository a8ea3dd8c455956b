"""Clipping by value: what it was given is judged, and what became of what it gave back."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, gradients, sketches, total

LIMIT = 0.5


def clip(script, given):
    """given: the gradients of each rank. Returns them clipped."""
    after = [[one.clamp(-LIMIT, LIMIT) for one in of_rank] for of_rank in given]
    for stream, of_rank, clipped in zip(script.streams, given, after, strict=True):
        stream.append(records.Limited(script.numbers, sketches(of_rank), sketches(clipped), [-1] * len(of_rank)))
        stream.append(records.Clipped("value", script.numbers, LIMIT, None, len(of_rank), LINE))
    return after


def averaged(*passes, factor=0.5):
    return [total([of_rank for computed in passes for of_rank in computed], factor)] * 2


def own(*passes):
    """Each rank's gradients alone."""
    return [total(of_rank) for of_rank in zip(*passes, strict=True)]


@pytest.mark.parametrize(
    ("given", "broken", "expected"),
    [
        (lambda first, second: averaged(first, second), set(), "CONFORMS"),
        (lambda first, second: averaged(second), {"watch/every-backward"}, "DOES NOT CONFORM"),
        (lambda first, second: own(first, second), {"watch/averaged"}, "DOES NOT CONFORM"),
        (lambda first, second: averaged(first, second, factor=0.3), set(), "UNDECIDED"),
    ],
)
def test_what_it_was_given(given, broken, expected):
    script = Script(drift=0.1 if broken == {"watch/averaged"} else 0.0)
    for _ in range(3):
        script.step(clip(script, given(script.backward(), script.backward())))
        script.clear()
    findings = script.findings()
    assert verdict(findings) == expected
    assert {law for law, _ in findings.causes} - {"watch/same-weights"} == broken


@pytest.mark.parametrize(
    ("factor", "given", "broken", "expected"),
    [
        (0.5, lambda computed: computed, {"watch/one-factor"}, "DOES NOT CONFORM"),
        (0.3, lambda computed: computed, set(), "UNDECIDED"),
        # Something else was clipped.
        (0.5, lambda computed: [gradients(1), gradients(2)], set(), "UNDECIDED"),
    ],
)
def test_each_rank_clips_before_the_average(factor, given, broken, expected):
    script = Script()
    for _ in range(3):
        script.step([total(clip(script, given(script.backward())), factor)] * 2)
        script.clear()
    findings = script.findings()
    assert verdict(findings) == expected
    assert {law for law, _ in findings.causes} == broken


def test_a_script_that_clips_by_value():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with conformance.watching():
        for _ in range(3):
            model(torch.randn(8, 6)).square().sum().backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("limit", "clips_last", "effect"),
    [
        (1e-3, True, "clip.clipped-again"),
        (1e-3, False, "clip.passes-unclipped"),
        (1e3, True, None),  # nothing is beyond it
        (1e3, False, None),
    ],
)
def test_clips_in_each_micro_batch(limit, clips_last, effect):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(4):
            for micro_batch in range(2):
                (model(torch.randn(8, 6)).square().sum() / 2).backward()
                if clips_last or micro_batch == 0:
                    torch.nn.utils.clip_grad_value_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
    found = [cause.first.effect.code for (law, _), cause in findings.causes.items() if law == "watch/clip-whole-window"]
    assert found == ([] if effect is None else [effect])
