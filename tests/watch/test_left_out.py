"""What a script leaves out on purpose, now and then or for good, beside what it loses by mistake."""

import pytest

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import SHAPES, Script, total


def laws(findings):
    return {law for law, _ in findings.causes}


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (((1, 2), (0, 2), (0, 1), (0, 2)), "UNDECIDED"),  # by its gradients it is another one now and then
        (((0, 2),) * 4, "UNDECIDED"),  # one that sends wrong ones in each step, or looks at other data
        (((0,),) * 4, "DOES NOT CONFORM"),  # no average leaves out all but one
    ],
)
def test_ranks_are_left_out(kept, expected):
    script = Script(ranks=3)
    for ranks in kept:
        computed = script.backward()
        script.step([total([computed[rank] for rank in ranks], 1 / len(ranks))] * 3)
        script.clear()
    assert verdict(script.findings()) == expected


def test_what_is_made_small_is_not_lost():
    script = Script(ranks=1)
    for _ in range(3):
        [[first], [second]] = script.backward(scale=65536.0), script.backward()
        script.step([total([total([first], 1 / 65536), second])])
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


def ranks_with_own(
    numbers, *, start=False, names, wraps=False, left=(), inside=(), exchanges=False, apart=(), shapes=SHAPES
):
    """Each rank steps these parameters on its own gradients, and the others on the average. start: they differ between
    ranks from the start. apart: others, whose gradients are equal on all ranks, and whose weights are not. exchanges:
    the backward pass has collectives."""
    script = Script(shapes=shapes)
    script.each(records.Named({str(number): name for number, name in enumerate(names)}))
    if wraps:
        script.each(records.Wrapped(0, [*left], [*inside]))
    if exchanges:
        script.each(records.Exchanged([]))
    for step in range(4):
        computed = script.backward()
        average = total(computed, 0.5)
        script.step([[own[n] if n in numbers else average[n] for n in script.numbers] for own in computed])
        for rank, stream in enumerate(script.streams):
            for number in (*numbers, *apart) if start or step else ():
                stream[-1].values[number] = [one + rank for one in stream[-1].values[number]]
        script.clear()
    return script.findings()


OF_MODELS = ("weight", "bias", "weight", "weight", "weight", "bias")
"""As four models have them, one after the other."""

ALIKE = (*SHAPES[:2], *SHAPES[4:5] * 4)

NAMES = ("body.weight", "body.bias", "body.other", "more.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"numbers": (4, 5), "start": True}, "UNDECIDED"),
        ({"numbers": (4, 5)}, "UNDECIDED"),  # experts that start as copies, or a layer forgotten
        ({"numbers": (4, 5), "names": OF_MODELS}, "UNDECIDED"),
        ({"numbers": (4,), "apart": (5,), "shapes": ALIKE}, "UNDECIDED"),  # one without samples
        ({"numbers": (4,), "apart": (3, 5), "shapes": ALIKE}, "UNDECIDED"),
        ({"numbers": (4,), "apart": (2, 5), "shapes": ALIKE}, "DOES NOT CONFORM"),  # a part of the body
        ({"numbers": (4, 5), "apart": (3,)}, "DOES NOT CONFORM"),  # which is no expert's copy
        ({"numbers": (5,), "start": True}, "DOES NOT CONFORM"),  # half of one
        ({"numbers": (5,)}, "DOES NOT CONFORM"),
        ({"numbers": (5,), "names": OF_MODELS}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "wraps": True}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "start": True, "wraps": True}, "DOES NOT CONFORM"),  # a head outside of DDP
        ({"numbers": (4, 5), "start": True, "wraps": True, "left": (4, 5)}, "UNDECIDED"),  # DDP was told to leave it
        ({"numbers": (4, 5), "start": True, "exchanges": True}, "CONFORMS"),  # partitioned
        ({"numbers": (4, 5), "start": True, "exchanges": True, "wraps": True}, "CONFORMS"),
        ({"numbers": (4, 5), "start": True, "exchanges": True, "wraps": True, "inside": (3, 4, 5)}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "exchanges": True}, "DOES NOT CONFORM"),  # replicas
    ],
)
def test_modules_of_each_rank_s_own(options, expected):
    assert verdict(ranks_with_own(**{"names": NAMES, **options})) == expected


@pytest.mark.parametrize(("batches", "expected"), [((1, 1, 1), {"watch/window-length"}), ((2, 1, 1), set())])
def test_a_short_window(batches, expected):
    """A loader that gave more batches than went backward: the script leaves some out, and counts them as zero."""
    script = Script(ranks=1)
    for _ in range(4):
        for window in ((1, 1, 1, 1), (1, 1, 1, 1), batches):
            computed = []
            for count in window:
                computed += script.backward(factors=[0.25], targets=8)
                for record in script.streams[0]:
                    if isinstance(record, records.Backward) and record.backward == script.backwards:
                        record.loader, record.batches = 7, count
            script.step([total(computed)])
            script.clear()
    assert laws(script.findings()) == expected


@pytest.mark.parametrize(
    ("loaders", "heads", "expected"),
    [
        ((7, 7, 7), False, {"watch/mean-of-all"}),
        ((7, 8, 9), False, set()),  # data sets
        ((7, None, None), False, set()),  # groups of one batch
        ((7, 7, 7), True, set()),
    ],
)
def test_means_over_different_numbers(loaders, heads, expected):
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for place, (loader, count) in enumerate(zip(loaders, (8, 4, 8), strict=True)):
            [gradients] = script.backward(factors=[1 / 3], targets=count)
            backward, local = script.streams[0][-2:]
            backward.loader, backward.batches = loader, int(loader is not None)
            if heads:
                local.parameters, local.sketches = [0, place + 1], [local.sketches[0], local.sketches[place + 1]]
                gradients = [one if n in (0, place + 1) else 0 * one for n, one in enumerate(gradients)]
            computed.append(gradients)
        script.step([total(computed)])
        script.clear()
    assert laws(script.findings()) == expected
