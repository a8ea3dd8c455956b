"""What a script leaves out on purpose, now and then or for good, beside what it loses by mistake."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, SHAPES, Script, sketches, total


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


@pytest.mark.parametrize(("dropped", "expected"), [((0, 1, 0, 1), "UNDECIDED"), ((0, 0, 0, 0), "DOES NOT CONFORM")])
def test_micro_batches_are_left_out(dropped, expected):
    """By their losses these are others in each window. Whoever clears by mistake loses the same ones."""
    script = Script(ranks=1)
    for last in dropped:
        computed = [script.backward()[0] for _ in range(3)]
        script.step([total(computed[last + 1 :])])
        script.clear()
    assert verdict(script.findings()) == expected


def test_what_is_made_small_is_not_lost():
    script = Script(ranks=1)
    for _ in range(3):
        [[first], [second]] = script.backward(scale=65536.0), script.backward()
        script.step([total([total([first], 1 / 65536), second])])
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


@pytest.mark.parametrize(
    ("lost", "rows", "loader", "expected"),
    [
        ((1, 1, 1, 1), "others", 7, {"watch/used"}),
        ((2, 0, 3, 1), "others", 7, set()),  # what looks wrong
        ((1, 1, 1, 1), "same", 7, set()),  # a probe
        ((1, 1, 1, 1), "others", None, set()),  # a memory, to compare with
    ],
)
def test_passes_are_cleared_before_steps(lost, rows, loader, expected):
    script = Script(ranks=1)
    for count in lost:
        for _ in range(count):
            script.each(records.Entered([script.steps if rows == "same" else -script.backwards], False, LINE))
            script.backward(loader=loader)
            script.clear()
        script.each(records.Entered([script.steps], False, LINE))
        script.step(script.backward(loader=7))
        script.clear()
    findings = script.findings()
    assert laws(findings) == expected
    assert bool(findings.open) != bool(expected)


@pytest.mark.parametrize(("divisor", "expected"), [(4.0, {"watch/used"}), (3.0, set())])
def test_a_share_of_each_window_is_cleared(divisor, expected):
    """One of four passes, each time, whose losses are divided by so many."""
    script = Script(ranks=1)
    for _ in range(4):
        computed = []
        for place in range(4):
            one = script.backward(factors=[1 / divisor], loader=7)
            script.streams[0][-2].divisors = [divisor]
            if place == 0:
                script.clear()
            else:
                computed += one
        script.step([total(computed)])
    assert laws(script.findings()) == expected


def of_another(script, number):
    """A step of an optimizer that has nothing to do with what is cleared."""
    script.each(records.Parameter(90 + number, [6, 5], "float32", 1, f"q{number}"))
    script.each(records.Optimizer(1 + number, "SGD", [90 + number]))
    gradient = sketches(script.backward()[0][:1])
    for stream in script.streams:
        stream[-1] = records.Local(script.backwards, [90 + number], [90 + number], "float32", gradient)
    script.each(
        records.Stepped(
            1 + number, "SGD", [0.1], [90 + number], [], False, None, False, False, "float32", [90 + number], gradient,
            [90 + number], gradient, LINE,
        )
    )  # fmt: skip


@pytest.mark.parametrize(("loses", "expected"), [(lambda step: True, {"watch/used"}), (lambda step: step == 2, set())])
def test_passes_are_cleared_before_the_steps_of_one_of_several_optimizers(loses, expected):
    script = Script(ranks=1)
    for step in range(6):
        if loses(step):
            script.backward(loader=7)
            script.clear()
        script.step(script.backward(loader=7))
        script.clear()
        for number in range(3):
            of_another(script, number)
    assert laws(script.findings()) == expected


def ranks_with_own(numbers, *, start, names, wraps=False, left=(), apart=(), shapes=SHAPES, split=(), inside=()):
    """Each rank steps these parameters on its own gradients, and the others on the average. apart: others, whose
    gradients are equal on all ranks, and whose weights are not."""
    script = Script(shapes=shapes)
    script.each(records.Named({str(number): name for number, name in enumerate(names)}))
    if wraps:
        script.each(records.Wrapped(0, [*left], [*inside]))
    script.each(records.Exchanged([*split]))
    for step in range(4):
        computed = script.backward()
        average = total(computed, 0.5)
        script.step([[own[n] if n in numbers else average[n] for n in script.numbers] for own in computed])
        for rank, stream in enumerate(script.streams):
            for number in (*numbers, *apart) if start or step else ():
                stream[-1].values[number] = [one + rank for one in stream[-1].values[number]]
        script.clear()
    return script.findings()


OF_MODELS = ("weight", "bias") * 3
"""As three models have them, one after the other."""

ALIKE = (*SHAPES[:2], *SHAPES[4:5] * 4)

NAMES = ("body.weight", "body.bias", "body.other", "more.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"numbers": (4, 5), "start": True}, "UNDECIDED"),
        ({"numbers": (4, 5), "start": False}, "UNDECIDED"),  # experts that start as copies, or a layer forgotten
        ({"numbers": (4, 5), "start": False, "names": OF_MODELS}, "UNDECIDED"),
        ({"numbers": (4,), "start": False, "apart": (5,), "shapes": ALIKE}, "UNDECIDED"),  # one without samples
        ({"numbers": (4,), "start": False, "apart": (3, 5), "shapes": ALIKE}, "UNDECIDED"),
        ({"numbers": (4,), "start": False, "apart": (2, 5), "shapes": ALIKE}, "DOES NOT CONFORM"),  # a part of the body
        ({"numbers": (4, 5), "start": False, "apart": (3,)}, "DOES NOT CONFORM"),  # which is no expert's copy
        ({"numbers": (5,), "start": True}, "DOES NOT CONFORM"),  # half of one
        ({"numbers": (5,), "start": False}, "DOES NOT CONFORM"),
        ({"numbers": (5,), "start": False, "names": OF_MODELS}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "start": False, "wraps": True}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "start": True, "wraps": True}, "DOES NOT CONFORM"),  # a head outside of DDP
        ({"numbers": (4, 5), "start": True, "wraps": True, "left": (4, 5)}, "UNDECIDED"),  # which was told so
        ({"numbers": (4, 5), "start": True, "wraps": True, "split": (4, 5)}, "UNDECIDED"),  # classes, split over ranks
        ({"numbers": (4, 5), "start": True, "wraps": True, "split": (3,)}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "start": True, "wraps": True, "split": (4, 5), "inside": (3, 4, 5)}, "DOES NOT CONFORM"),
        ({"numbers": (5,), "start": True, "wraps": True, "split": (4, 5)}, "DOES NOT CONFORM"),
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


@pytest.mark.parametrize(("every", "is_open"), [(1, True), (4, False)])
def test_another_loss_is_cleared_before_steps(every, is_open):
    """Before each, it may be half of what was to be learned; now and then, somebody looks at its gradients."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with suppress(AssertionError), conformance.watching() as findings:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            output = model(torch.randn(3, 4))
            if step % every == 0:
                output[:, 0].square().mean().backward(retain_graph=True)
                model.zero_grad()
            output[:, 1].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not findings.causes
    assert any("in a line of its own before each step" in reason for reason in findings.open) == is_open
    assert any("cleared before a step, or only looked at" in note for note in findings.notes) != is_open
