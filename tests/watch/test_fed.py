"""What models are fed: by name, in dictionaries and lists, and next to the first input."""

import pytest
import torch
from torch import nn

from conformance.watch.ledger import Ledger
from conformance.watch.recording.holdings import fingerprints, fingerprints_beside
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
