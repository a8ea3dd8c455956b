"""Mistakes that a step or a run proves, each with what a right script does instead, of which nobody is accused."""

import math

import pytest
import torch

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, gradients, sketches, total


def laws(findings):
    return {law for law, _ in findings.causes}


@pytest.mark.parametrize(
    ("scale", "drops_pass", "expected"),
    [(1024.0, False, {"watch/finite"}), (None, False, set()), (1024.0, True, set())],
)
def test_an_overflow_that_is_replaced(scale, drops_pass, expected):
    """Without a loss scale it may be meant, and so may be to leave the pass out."""
    script = Script(ranks=1)
    [[first], [overflown]] = script.backward(scale=scale), script.backward(scale=scale)
    script.streams[0][-1].sketches = sketches([torch.full_like(one, math.inf) for one in overflown])
    used = total([first], 1 / (scale or 1.0)) if drops_pass else [one.clamp(-1, 1) for one in first]
    script.step([used])
    findings = script.findings()
    assert laws(findings) == expected
    assert bool(findings.open) != bool(expected)


@pytest.mark.parametrize(
    ("scale", "targets", "factors", "expected"),
    [
        (None, 8, [0.5], {"watch/unscaled"}),
        (256.0, 8, [256.0], set()),
        (None, None, [], set()),
        (None, 8, [128.0], set()),
    ],
)
def test_a_loss_that_was_not_scaled(scale, targets, factors, expected):
    """What is known of none, may have been scaled by hand, and what is multiplied by more than one, too."""
    script = Script(ranks=1)
    for _ in range(3):
        [[computed]] = [script.backward(scale=scale, targets=targets, factors=factors)]
        script.each(records.Unscaled(0, 256.0, LINE))
        script.step([total([computed], 1 / 256)])
        script.clear()
    assert laws(script.findings()) == expected


def kept(script, window):
    """In place of what was computed, what the first window used."""
    return gradients(100)


def of_one_size(script, window):
    return [one.sign() for one in gradients(100)]


def late(script, window):
    return gradients(100 * window + 50)


@pytest.mark.parametrize(("make", "expected"), [(kept, {"watch/fresh"}), (of_one_size, set()), (late, set())])
def test_gradients_of_an_earlier_step(make, expected):
    """Signs are the same again, and gradients of another thread or window come once."""
    script = Script(ranks=1)
    for window in range(4):
        script.backward()
        script.step([make(script, window)])
        script.clear()
    findings = script.findings()
    assert laws(findings) == expected
    assert verdict(findings) == ("DOES NOT CONFORM" if expected else "UNDECIDED")


def test_some_parameters_that_are_clamped_by_hand_have_the_same_gradient_again():
    """They are computed anew, and are as large as they may be in each step."""
    script = Script(ranks=1)
    [same] = [gradients(3)]
    for _ in range(3):
        [computed] = script.backward()
        script.step([[*computed[:-1], same[-1]]])
        script.clear()
    assert laws(script.findings()) == set()


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_parameter_that_is_not_used_steps_along_its_old_gradient(is_computed):
    script = Script(ranks=1)
    [first] = script.backward()
    script.step([first])
    script.clear()
    [second] = script.backward()
    local = script.streams[0][-1]
    if is_computed:
        script.step([second])
    else:
        local.parameters, local.sketches = local.parameters[:-1], local.sketches[:-1]
        script.step([[*second[:-1], first[-1]]])
    assert laws(script.findings()) == (set() if is_computed else {"watch/fresh"})


@pytest.mark.parametrize(
    ("weights", "counts", "windows", "expected"),
    [
        ((3, 2, 1), (8, 8, 8), 2, {"watch/every-backward"}),
        ((4, 2, 1), (8, 8, 8), 2, {"watch/every-backward"}),  # summed over two ranks each time
        ((3, 2, 1), (24, 16, 8), 2, set()),  # by their numbers of samples
        ((3, 2, 1), (None, None, None), 2, set()),
        ((5, 2, 1), (8, 8, 8), 2, set()),
    ],
)
def test_what_is_added_up_is_added_again(weights, counts, windows, expected):
    script = Script()
    for _ in range(windows):
        computed = []
        for weight, count in zip(weights, counts, strict=True):
            computed += [total([of_rank], weight) for of_rank in script.backward(targets=count)]
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    assert laws(script.findings()) == expected


def weighed(script, apart, last=False):
    """apart: the number of the parameters that differ between ranks."""
    for rank, stream in enumerate(script.streams):
        values = gradients(7)
        values = [one + rank if number < apart else one for number, one in enumerate(values)]
        stream.append(records.Weighed(script.numbers, sketches(values), last))


@pytest.mark.parametrize(("apart", "expected"), [(6, {"watch/same-weights"}), (0, set())])
def test_each_rank_steps_its_own_parameters(apart, expected):
    """And sends them to the others, or does not."""
    script = Script()
    for rank, stream in enumerate(script.streams):
        stream.append(records.Optimizer(1, "Adam", script.numbers[rank::2]))
    for _ in range(5):
        weighed(script, apart if script.steps else 0)
        [one, two] = script.backward()
        used = total([one, two], 0.5)
        for rank, stream in enumerate(script.streams):
            own = script.numbers[rank::2]
            stream.append(
                records.Stepped(
                    1, "Adam", [0.1], own, [], False, None, False, False, "float32",
                    own, sketches([used[number] for number in own]), [], [], LINE,
                )
            )  # fmt: skip
        script.steps += 1
        script.clear()
    weighed(script, apart, last=True)
    assert laws(script.findings()) == expected


@pytest.mark.parametrize(
    ("ranks", "use", "expected"),
    [((0,), (0,), {"watch/one-factor"}), ((0, 1), (0, 1), set()), ((0,), (0, 1), set())],
)
def test_some_ranks_clip(ranks, use, expected):
    """Or one of them for all. use: the ranks that use what is clipped."""
    script, factor = Script(), 0.25
    used = total(script.backward(), 0.5)
    clipped = total([used], 1 / (1 / factor + 1e-6))
    for rank in ranks:
        script.streams[rank].append(records.Clipped("norm", script.numbers, 1.0, 1 / factor, 6, LINE))
    script.step([clipped if rank in use else used for rank in (0, 1)])
    assert laws(script.findings()) & {"watch/one-factor"} == expected


def test_a_rank_steps_on_an_overflow_that_another_leaves_out():
    script = Script()
    script.backward()
    script.step([[torch.full_like(one, math.inf) for one in gradients(1)]] * 2, ranks=[0])
    assert laws(script.findings()) == {"watch/finite"}


def test_ranks_with_different_weights_that_use_one_gradient_have_averaged():
    """A body by hand, which no hook sees, beside a head that each rank trains alone."""
    script = Script(drift=0.1)
    script.each(records.Unheld(["base"], [[3, 3]]))
    for _ in range(3):
        script.backward()
        script.step([gradients(5 + script.steps)] * 2)
        script.clear()
    assert laws(script.findings()) == {"watch/same-weights"}
