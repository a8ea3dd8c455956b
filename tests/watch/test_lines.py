"""One problem has one card."""

import pytest

from conformance.watch import records
from conformance.watch.judging.properties import Property
from conformance.watch.verdict import outcome

from .scripts import LINE, Script, averaged, stepped, total


@pytest.mark.parametrize(
    ("parts", "shows_first", "expected"),
    [
        (1, False, {"watch/averaged"}),
        (1, True, {"watch/averaged"}),
        # What is apart before the first step was never equal.
        (0, True, {"watch/averaged", "watch/same-weights"}),
    ],
)
def test_weights_that_steps_bring_apart_have_no_card(parts, shows_first, expected):
    """shows_first: the weights differ before it is proved what is wrong with the steps."""
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
    """What `unscale_` is given has the same size at each scale, because a call has clipped it."""
    script = Script(ranks=1)
    for scale in (64.0,) * 4 + (128.0,) * 4:
        [computed] = script.backward(scale)
        script.each(records.Clipped("norm", script.numbers, 2.0, 1e3, len(script.numbers), LINE))
        script.each(records.Unscaled(0, scale, [LINE[0], 8, LINE[2]], 1.0, 2.0))
        script.step([total([computed], 2e-3 / scale)])
        script.clear()
    [cause] = script.findings().causes.values()
    assert (cause.first.law, cause.first.site, cause.first.says.code) == (
        "watch/unscale-before-clip",
        LINE,
        "clipping.scaled-norm",
    )
