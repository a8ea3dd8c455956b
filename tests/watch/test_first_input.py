"""Models with several inputs, of which only the first is the same on several ranks."""

import pytest
import torch
from torch import nn

from conformance.watch import records
from conformance.watch.recording.holdings import fingerprints_beside
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, total

OTHERS = "100% of the rows of a rank's first input came on another rank, too, with other inputs beside them"


def judged(beside, *, in_turn=False, sampler=None):
    """Each of two ranks reads all rows once, in an order of its own or `in_turn`. beside: of a row, on a rank."""
    script = Script()
    for stream in script.streams:
        if sampler is not None:
            stream.append(records.Epoch(sampler, 0, True, 2, 1, 3))
    orders = [torch.randperm(192, generator=torch.Generator().manual_seed(rank * (not in_turn))) for rank in range(2)]
    for step in range(12):
        for rank, stream in enumerate(script.streams):
            rows = orders[rank][step * 16 : step * 16 + 16].tolist()
            stream.append(records.Entered(rows, True, LINE, sampler, [], [beside(row, rank) for row in rows]))
        script.step([total(script.backward(), 0.5)] * 2)
        script.clear()
    return script.findings()


def same(row, rank):
    return 1000 + row


def other(row, rank):
    return 1000 * rank + row


def test_all_inputs_are_the_same():
    assert {law for law, _ in judged(same).causes} == {"watch/own-data"}


def test_the_first_alone_is():
    findings = judged(other)
    assert (verdict(findings), findings.causes, findings.open) == ("UNDECIDED", {}, {OTHERS: 1})


def test_a_sampler_deals_the_others_out():
    findings = judged(other, sampler=5)
    assert (verdict(findings), findings.causes) == ("CONFORMS", {})


def test_the_first_is_in_step_on_all_ranks():
    [reason] = judged(other, in_turn=True).open
    assert reason.startswith("the first input of models was the same on all ranks")


@pytest.mark.parametrize("changed", [0, 1])
def test_a_fingerprint_is_of_all_inputs(changed):
    batches = [torch.arange(12.0).reshape(4, 3), torch.arange(4)]
    before = fingerprints_beside(torch.zeros(4), *batches)
    batches[changed][2] += 1
    after = fingerprints_beside(torch.zeros(4), *batches)
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, True, False, True]


def test_an_input_with_other_rows_stands_beside_each():
    batch, scale = torch.zeros(4), torch.ones(2)
    before = fingerprints_beside(batch, torch.arange(4), scale)
    after = fingerprints_beside(batch, torch.arange(4), scale + 1)
    assert len(before) == 4
    assert {*before}.isdisjoint(after)


def test_inputs_with_other_numbers_of_rows(conformance_watch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, rows, scale):
            return self.layer(rows) * scale.sum()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3), torch.tensor([1.0 + step, 2.0])).square().mean().backward()
        optimizer.step()
