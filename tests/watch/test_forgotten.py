"""Ranks that average their weights, all or all but some."""

from dataclasses import replace

import pytest

from conformance.watch import records

from .scripts import Script, gradients, sketches, total

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "head.weight", "head.bias")


def trained(forgets, *, every=1, steps=12, names=NAMES, late=()):
    """What is wrong with the weights of ranks that step on their own gradients, and average their weights after each
    `every`th step, but for those that it forgets; `late`: those of them that it averages in the end all the same."""
    script = Script()
    script.each(records.Named({str(number): name for number, name in enumerate(names)}))
    weights = [gradients(7)] * 2
    for step in range(steps):
        computed = script.backward()
        script.step(computed)
        after = [
            [one - 0.1 * gradient for one, gradient in zip(own, of_rank, strict=True)]
            for own, of_rank in zip(weights, computed, strict=True)
        ]
        for stream, before, now in zip(script.streams, weights, after, strict=True):
            stream[-1] = replace(stream[-1], values=sketches(before), after=sketches(now), is_elsewhere=step > 0)
        mean = total(after, 0.5)
        left = {number for number in forgets if number not in late or step < steps - 2}
        meets = step % every == every - 1
        weights = [[of_rank[n] if n in left or not meets else mean[n] for n in range(len(mean))] for of_rank in after]
        script.clear()
    return [one.first.says for one in script.findings().causes.values()]


@pytest.mark.parametrize(
    ("forgets", "options", "expected"),
    [
        ((5,), {}, True),
        ((1, 2), {}, True),
        ((5,), {"every": 3}, True),
        ((), {}, False),
        ((4, 5), {}, False),  # a head of each rank's own
        ((1, 3, 5), {}, False),  # biases of its own
        ((5,), {"late": (5,)}, False),  # in turns
        ((5,), {"steps": 3}, False),
        ((5,), {"names": (*NAMES[:5], "temperature")}, False),
    ],
)
def test_what_is_left_out_of_an_average(forgets, options, expected):
    assert bool(trained(forgets, **options)) == expected
