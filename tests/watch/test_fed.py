"""What models are fed, by name, in dictionaries and in lists, and by which of several ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.inputs import Inputs
from conformance.watch.ledger import Ledger
from conformance.watch.recording.holdings import fingerprints
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Entered


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, *args, **kwargs):
        return self.layer(torch.ones(3, 4))


BATCH = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((BATCH,), {}),
        ((), {"x": BATCH}),
        (({"labels": None, "x": BATCH},), {}),
        (([BATCH, torch.ones(3)],), {}),
        (((None, [{"x": BATCH}]),), {}),
        ((nn.Parameter(torch.ones(2)),), {"x": BATCH}),
    ],
)
def test_the_first_tensor_of_data_is_known_wherever_it_is(tmp_path, args, kwargs):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()) as recording:
        recording.optimizer(optimizer)
        model(*args, **kwargs)
        entered = [one for one in recording._waiting if isinstance(one, Entered)]
        recording.flush()
    assert [one.rows for one in entered] == [fingerprints(BATCH)]


@pytest.mark.parametrize("size", [28, 32, 224, 225, 256, 512])
def test_images_whose_margins_are_alike_are_told_apart(size):
    """Of large ones some elements are read."""
    images = torch.zeros(8, 3, size, size)
    images[:, :, size // 4 : -size // 4, size // 4 : -size // 4] = torch.arange(1.0, 9.0).reshape(8, 1, 1, 1)
    assert len({*fingerprints(images)}) == 8
    assert fingerprints(images) == fingerprints(images.clone())


def data_of(shares):
    """shares: for each rank, the number of the part that it reads."""
    findings = Findings()
    inputs = Inputs(len(shares), findings)
    for step in range(20):
        for rank in torch.randperm(len(shares)).tolist():
            first = 1000 * shares[rank] + 2 * step
            inputs.feed(rank, Entered([first, first + 1], True, None))
    inputs.averaged(is_alike=len({*shares}) == 1)
    inputs.finish(averages=True)
    return [SimpleNamespace(law=law, ranks=cause.ranks) for (law, _), cause in findings.causes.items()]


@pytest.mark.parametrize(
    ("shares", "ranks"),
    [((0, 1, 2, 3), None), ((0, 1, 2, 2), {2, 3}), ((0, 1, 0), {0, 2}), ((0, 1, 1, 2), {1, 2}), ((0, 0), {0, 1})],
)
def test_any_two_ranks_may_read_the_same(shares, ranks):
    torch.manual_seed(len(shares))
    found = data_of(shares)
    assert [(one.law, one.ranks) for one in found] == ([("watch/own-data", ranks)] if ranks else [])
