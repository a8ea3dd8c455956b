"""Weights that differ between ranks, or change between steps."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, averaged, gradients, laws, sketches, total
from .trained import loss, network, records_in


def test_ranks_with_different_weights_and_equal_gradients_have_averaged():
    """Also if a model without an optimizer has gradients, and each rank may train the other alone."""
    script = Script(drift=0.1)
    script.each(records.Unheld(["base"], [[3, 3]]))
    for _ in range(3):
        script.backward()
        script.step([gradients(5 + script.steps)] * 2)
        script.clear()
    assert laws(script.findings()) == {"watch/same-weights"}


@pytest.mark.parametrize(("is_elsewhere", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_may_mix_their_weights_between_steps(is_elsewhere, expected):
    """For example, they average some of the weights from time to time, or move halfway to those of a neighbor."""
    script = Script(drift=0.1)
    for window in range(5):
        script.step(script.backward())
        for stream in script.streams:
            assert isinstance(stream[-1], records.Stepped)
            stream[-1].is_elsewhere = is_elsewhere and window % 2 == 1
        script.clear()
    assert verdict(script.findings()) == expected


KEPT = {"watch/kept"}


def mixed(steps, mix, *, ranks=2, more=0):
    """The findings of ranks that step on their own gradients. mix: the next weights of a rank, from those of all. more:
    the numbers that they exchange besides the weights."""
    script = Script(ranks=ranks)
    weights = [gradients(0)] * ranks
    for step in range(steps):
        used = script.backward()
        for stream in script.streams:
            stream[-2].exchanged = sum(one.numel() for one in weights[0]) + more
        script.step(used)
        after = [total([old, new], 1.0) for old, new in zip(weights, used, strict=True)]
        for stream, old, new in zip(script.streams, weights, after, strict=True):
            stream[-1].values, stream[-1].after, stream[-1].is_elsewhere = sketches(old), sketches(new), True
        weights = [mix(step, rank, weights, after) for rank in range(ranks)]
        script.clear()
    return script.findings()


def of_rank(choose):
    return lambda step, rank, before, after: after[choose(step)]


@pytest.mark.parametrize(
    ("mix", "ranks", "more", "expected"),
    [
        (of_rank(lambda step: 0), 2, 0, KEPT),
        (of_rank(lambda step: 1), 2, 0, KEPT),
        (of_rank(lambda step: 1), 2, 1, set()),  # a number by which the best rank is chosen
        (of_rank(lambda step: step % 2), 2, 0, set()),
        (lambda step, rank, before, after: total(after, 0.5), 2, 0, set()),
        (lambda step, rank, before, after: total(after), 3, 0, KEPT),
        (lambda step, rank, before, after: [total(after)[0], *total(after, 1 / 3)[1:]], 3, 0, KEPT),
    ],
)
def test_ranks_mix_their_weights_after_each_step(mix, ranks, more, expected):
    assert laws(mixed(6, mix, ranks=ranks, more=more)) == expected


def test_weights_do_not_enter_a_skipped_step():
    script = Script()
    for _ in range(3):
        script.step(averaged(script.backward()))
        script.backward()
        script.each(records.Skipped(0, 64.0, ["train.py", 9, "main"]))
        script.clear()
    assert laws(script.findings()) == set()


def test_weights_that_replace_those_of_other_ranks_in_a_few_steps():
    assert laws(mixed(4, of_rank(lambda step: 0))) == set()


@pytest.mark.parametrize("owns", [True, False])
def test_a_script_may_take_steps_back(owns):
    """On all ranks or on one, such as to measure the quality of a sample."""
    script = Script()
    for rank, stream in enumerate(script.streams):
        stream.append(records.Optimizer(1, ("SGD", "Adam")[rank * owns], script.numbers))
    weights = gradients(0)
    for _ in range(7):
        used = script.backward()
        script.step(used)
        for rank, stream in enumerate(script.streams):
            after = total([weights, used[0]])
            stream[-1].optimizer, stream[-1].type = 1, ("SGD", "Adam")[rank * owns]
            stream[-1].values, stream[-1].after = sketches(weights), sketches(after)
        script.clear()
    assert laws(script.findings()) & KEPT == set()


@pytest.mark.parametrize("of", [(), (0,), (0, 1)])
def test_changes_of_weights_between_steps_are_a_fact(of):
    script = Script()
    for step in range(4):
        script.step(averaged(script.backward()))
        for rank in of if step == 2 else ():
            script.streams[rank][-1].is_elsewhere = True
        script.clear()
    findings = script.findings()
    assert (findings.causes, [*findings.open]) == ({}, ["agreement.between"] * bool(of))


@pytest.mark.parametrize("trains", [True, False])
def test_frozen_weights_may_change_without_steps(trains, tmp_path):
    """A momentum encoder's weights do. Weights that are frozen from time to time, as in a GAN, are trained."""
    model, other = network(), network()
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
        for _ in range(4):
            other.requires_grad_(trains)
            (loss(model) + loss(other)).backward()
            other.requires_grad_(requires_grad=False)
            with torch.no_grad():
                for one in other.parameters():
                    one.mul_(0.9)
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    passes = [one.versions["0"] for one in found if isinstance(one, records.Backward)]
    assert [second > first for first, second in zip(passes[::2], passes[1::2], strict=True)] == [trains] * 4
    steps = [one.is_elsewhere for one in found if isinstance(one, records.Stepped)]
    assert [bool(one) for one in steps] == [False, *[trains] * 3]
    assert [one.moved for one in found if isinstance(one, records.Cleared)] == [False] * 4
