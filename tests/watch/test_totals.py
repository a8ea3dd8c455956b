"""What the graph of a loss and the class of an optimizer say, and by how much gradients are divided."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from conformance.watch import records
from conformance.watch.ledger import Ledger
from conformance.watch.lines import decoded
from conformance.watch.recording import losses
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.verdict import verdict

from .scripts import Script, total

FIRST, LAST = torch.tensor([0, 1]), torch.tensor([1, 2])


class Halving(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Own(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


@pytest.mark.parametrize(("kind", "is_own"), [(torch.optim.SGD, False), (Halving, False), (Own, True)])
def test_whose_step_reads_the_gradients(kind, is_own, tmp_path):
    """That of torch's class, which the script's own calls once it has changed them, or the script's own."""
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([weight], {"lr": 0.1}) if kind is Own else kind([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
    [file] = tmp_path.glob("*.jsonl")
    found = [decoded(line) for line in file.read_bytes().splitlines(keepends=True)]
    assert [one.is_own for one in found if isinstance(one, records.Stepped)] == [is_own]


@pytest.mark.parametrize(
    ("summed", "factor", "of_any", "terms", "expected"),
    [
        (2, None, False, 0, "CONFORMS"),  # the sum over two sentences, divided by two
        (2, 0.5, False, 0, "DOES NOT CONFORM"),  # their mean
        (4, None, False, 0, "UNDECIDED"),
        (0, None, True, 0, "UNDECIDED"),  # a sum of anything
        (0, None, False, 2, "UNDECIDED"),  # the losses of two views
        (0, None, False, 3, "DOES NOT CONFORM"),
        (0, None, False, 0, "DOES NOT CONFORM"),
    ],
)
def test_gradients_are_divided_by_as_many_as_there_are_ranks(summed, factor, of_any, terms, expected):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=[] if factor is None else [factor])
        for one in (stream[-2] for stream in script.streams):
            one.summed, one.targets, one.of_any, one.terms = summed, 0 if summed else None, of_any, terms
        script.step([total(computed, 0.25)] * 2)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_sum_over_the_ranks_that_still_have_data(is_joined):
    """Whose mean it is, as Join divides by their number."""
    script = Script()
    if is_joined:
        script.each(records.Joined())
    for _ in range(3):
        script.step([total(script.backward(targets=16))] * 2)
        script.clear()
    assert {law for law, _ in script.findings().causes} == (set() if is_joined else {"watch/means-averaged"})


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        (lambda x: cross_entropy(x, FIRST) + cross_entropy(x, LAST), 2),
        (lambda x: sum(cross_entropy(x, targets) for targets in (FIRST, LAST, FIRST)), 3),
        (lambda x: (cross_entropy(x, FIRST) + cross_entropy(x, LAST)) / 3, 2),
        (lambda x: cross_entropy(x, FIRST) + x.square().sum(), 0),
        (lambda x: cross_entropy(x, FIRST) + 0.5 * cross_entropy(x, LAST), 0),
        (lambda x: cross_entropy(x, FIRST), 0),
    ],
)
def test_how_many_losses_of_one_kind_are_added_up(loss, terms):
    assert losses.of(loss(torch.randn(2, 3, requires_grad=True)).grad_fn).terms == terms
