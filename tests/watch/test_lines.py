"""One problem has one card, which blames the line of the wrong call."""

import pytest

from conformance.watch import records
from conformance.watch.judging.properties import Property
from conformance.watch.report.watch_cards import cards
from conformance.watch.verdict import outcome

from .scripts import LINE, Script, averaged, stepped, total

LINES = {
    records.Entered: 3,
    records.Backward: 5,
    records.Clipped: 6,
    records.Unscaled: 7,
    records.Updated: 8,
    records.Stepped: 9,
}


def entered(*, wrapped):
    return records.Entered([1], wrapped, LINE)


def own(script, *, waits=False, around=False, wraps=True):
    """waits: in `no_sync`. around: the model is called without the wrapper."""
    if wraps:
        script.each(records.Grouped(2))
    script.each(entered(wrapped=wraps and not around))
    computed = script.backward()
    for stream in script.streams:
        stream[-2].waits = waits
    return computed


def clips_its_own(script):
    computed = script.backward()
    for stream, norm in zip(script.streams, (2.0, 4.0), strict=True):
        stream.append(records.Clipped("norm", script.numbers, 1.0, norm, len(script.numbers), LINE))
    return [total([total([computed[0]], 0.25), total([computed[1]], 0.125)])] * 2


def scaled(script, *scales, divides_by, updates=None):
    """scales: of each micro-batch. updates: the micro-batch before an update of the scale."""
    computed = []
    for number, scale in enumerate(scales):
        computed.append(script.backward(scale))
        if number == updates:
            script.each(records.Updated(0, scale, 2 * scale, LINE))
    script.each(records.Unscaled(0, divides_by, LINE))
    return averaged(*computed, factor=0.5 / divides_by)


def unscaled_twice(script):
    return [total([one], 1 / 64.0) for one in scaled(script, 64.0, divides_by=64.0)]


def last_micro_batch_only(script):
    first, second = script.backward(), script.backward()
    return [total([first[rank], total(second, 0.5)]) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (lambda script: own(script), ("watch/averaged", records.Stepped)),
        (lambda script: own(script, around=True), ("watch/averaged", records.Entered)),
        (lambda script: own(script, waits=True), ("watch/averaged", records.Backward)),
        (lambda script: own(script, wraps=False), ("watch/averaged", records.Stepped)),
        (last_micro_batch_only, ("watch/averaged", records.Backward)),
        (clips_its_own, ("watch/one-factor", records.Clipped)),
        (lambda script: scaled(script, 64.0, 32.0, divides_by=64.0), ("watch/one-scale", records.Backward)),
        (lambda script: scaled(script, 64.0, 32.0, divides_by=64.0, updates=0), ("watch/one-scale", records.Updated)),
        (lambda script: scaled(script, 64.0, divides_by=128.0, updates=0), ("watch/unscaled", records.Updated)),
        (lambda script: scaled(script, 64.0, divides_by=128.0), ("watch/unscaled", records.Backward)),
        (unscaled_twice, ("watch/unscaled", records.Stepped)),
        (lambda script: averaged(script.backward(), factor=0.25), ("watch/averaged-once", records.Stepped)),
    ],
)
def test_the_line_of_the_wrong_call_is_blamed(window, expected):
    script = Script(drift=0.1 * (expected[0] == "watch/averaged"))
    for _ in range(3):
        script.step(window(script))
        script.clear()
    for record in (one for stream in script.streams for one in stream if type(one) in LINES):
        record.site = [LINE[0], LINES[type(record)], LINE[2]]
    [cause] = script.findings().causes.values()
    assert (cause.first.law, cause.first.site[1]) == (expected[0], LINES[expected[1]])


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ({"waits": True}, "leave `no_sync()` before"),
        ({"around": True}, "call the model that DDP returns"),
        ({}, "all-reduce `p.grad`"),
        ({"wraps": False}, "all-reduce `p.grad`"),
    ],
)
def test_a_missing_average_has_the_one_fix_that_fits_the_script(how, fix):
    script = Script(drift=0.1)
    if how.get("wraps", True):
        script.each(records.Wrapped(0))
    for _ in range(3):
        script.step(own(script, **how))
        script.clear()
    for record in (one for stream in script.streams for one in stream if type(one) in LINES):
        record.site = [LINE[0], LINES[type(record)], LINE[2]]
    findings = script.findings()
    [card] = cards(outcome(findings).causes, findings, "")
    assert card.advice is not None and card.advice.startswith(fix) and " or " not in card.advice


@pytest.mark.parametrize(
    ("parts", "shows_first", "expected"),
    [
        (1, False, {"watch/averaged"}),
        (1, True, {"watch/averaged"}),
        # Weights that differ before the first step are another problem.
        (0, True, {"watch/averaged", "watch/same-weights"}),
    ],
)
def test_weights_that_wrong_steps_drive_apart_have_no_card(parts, shows_first, expected):
    """shows_first: the weights differ before the steps are proven wrong."""
    script = Script()
    for step in range(5):
        computed = script.backward()
        used = averaged(computed) if shows_first and step < 3 else computed
        for rank, stream in enumerate(script.streams):
            weights = total([computed[0]], 1 + 0.1 * rank * (step >= parts))
            stream.append(stepped(script.numbers, used[rank], weights))
        script.steps += 1
        script.clear()
    of = outcome(script.findings())
    assert {cause.first.law for cause in of.causes} == expected
    assert (Property.AGREEMENT in {row.of for row in of.rows}) == (len(expected) > 1)


def test_a_clip_before_unscaling_has_one_card():
    """Clipped gradients have the same norm at each scale."""
    script = Script(ranks=1)
    for scale in (64.0,) * 4 + (128.0,) * 4:
        [computed] = script.backward(scale)
        script.each(records.Clipped("norm", script.numbers, 2.0, 1e3, len(script.numbers), LINE))
        script.each(records.Unscaled(0, scale, [LINE[0], 8, LINE[2]]))
        script.step([total([computed], 2e-3 / scale)])
        script.clear()
    [cause] = script.findings().causes.values()
    assert (cause.first.law, cause.first.site, cause.first.says.code) == (
        "watch/unscale-before-clip",
        LINE,
        "clipping.scaled-norm",
    )
