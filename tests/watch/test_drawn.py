"""Which samples ranks draw, where the inputs that are made of them say nothing."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from conformance.watch.ledger import Ledger
from conformance.watch.recording import inputs as recorder
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Entered

NUMBER, BATCH = 24, 4


class Noisy(Dataset):
    """Makes another input of a sample each time."""

    def __init__(self, first=0, labelled=True):
        self.images = torch.arange(first, first + NUMBER).repeat(3, 1).T.float()
        self.labels = torch.arange(NUMBER) % 5
        self.labelled = labelled

    def __len__(self):
        return NUMBER

    def __getitem__(self, index):
        noisy = self.images[index] + torch.randn(3)
        return (noisy, self.labels[index]) if self.labelled else noisy


class MadeUp(Dataset):
    """Holds nothing."""

    def __len__(self):
        return NUMBER

    def __getitem__(self, index):
        return torch.randn(3), index % 5


class EverySecondTwice:
    """A sampler of the script's own, which may give ranks the same on purpose."""

    def __iter__(self):
        return iter([index for index in range(0, NUMBER, 2) for _ in range(2)])

    def __len__(self):
        return NUMBER


@pytest.fixture
def drawn(tmp_path_factory, monkeypatch):
    """What a rank that goes through a loader draws."""

    def read(loader, part=slice(None), epochs=1, seed=0, ranks=2):
        torch.manual_seed(seed)
        monkeypatch.setattr(recorder, "world", lambda: ranks)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path_factory.mktemp("records")
        Ledger.made(folder)
        with recorded(str(folder), Settings()) as recording:
            recording.optimizer(optimizer)
            for _ in range(epochs):
                for batch in loader:
                    inputs = batch if isinstance(batch, torch.Tensor) else batch[0]
                    model(inputs[part]).sum().backward()
            entered = [one for one in recording._waiting if isinstance(one, Entered)]
            recording.flush()
        assert len({tuple(one.rows) for one in entered}) == len(entered)
        return [one.drawn for one in entered]

    return read


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_sample_is_known_again(drawn, workers, labelled):
    loader = DataLoader(Noisy(labelled=labelled), BATCH, **workers)
    rows = drawn(loader, epochs=2)
    assert len(rows) == 2 * NUMBER // BATCH
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :] == drawn(loader, seed=1)
    assert len({one for row in rows for one in row}) == NUMBER


@pytest.mark.parametrize(
    "other",
    [
        Noisy(first=100),
        Subset(Noisy(first=100), range(NUMBER)),
        Subset(Noisy(), range(NUMBER - 1, -1, -1)),
        TensorDataset(torch.randn(NUMBER, 3), torch.zeros(NUMBER)),
    ],
)
def test_the_same_places_in_other_data(drawn, other):
    own = {one for row in drawn(DataLoader(Noisy(), BATCH)) for one in row}
    assert own.isdisjoint(one for row in drawn(DataLoader(other, BATCH)) for one in row)


def test_a_data_set_around_another_is_known(drawn):
    class Around(Dataset):
        def __init__(self, base):
            self.base = base

        def __len__(self):
            return NUMBER

        def __getitem__(self, index):
            return self.base[index]

    assert all(drawn(DataLoader(Around(Noisy()), BATCH)))


@pytest.mark.parametrize("other", [torch.eye(3).to_sparse().int(), torch.zeros(0, 3)])
def test_odd_tensors_in_a_batch_end_no_recording(drawn, other):
    loader = DataLoader(Noisy(), BATCH, collate_fn=lambda some: [torch.stack([x for x, _ in some]), other])
    assert not any(drawn(loader))


@pytest.mark.parametrize(
    ("loader", "part"),
    [
        (DataLoader(MadeUp(), BATCH), slice(None)),
        (DataLoader(Noisy(), BATCH), slice(0, None, 2)),  # each rank takes its part of a batch that all have
        (DataLoader(Noisy(), BATCH, sampler=EverySecondTwice()), slice(None)),
        (DataLoader(Noisy(), BATCH, sampler=WeightedRandomSampler([1.0] * NUMBER, NUMBER)), slice(None)),
        (DataLoader(Noisy(), BATCH, sampler=RandomSampler(range(NUMBER), replacement=True)), slice(None)),
        (DataLoader(Noisy(), BATCH, collate_fn=lambda some: torch.stack([x for x, _ in some[::2]])), slice(None)),
    ],
)
def test_what_each_rank_may_have_for_itself_is_not_known(drawn, loader, part):
    assert not any(drawn(loader, part))


def test_which_of_several_batches_a_rank_uses_is_not_known(drawn):
    class InWindows:
        """Takes one of two that were loaded."""

        def __iter__(self):
            batches = iter(DataLoader(Noisy(), BATCH))
            return (first for first, _ in zip(batches, batches, strict=True))

    assert not any(drawn(InWindows()))


def test_a_rank_alone_is_not_asked_what_it_draws(drawn, monkeypatch):
    asked = []
    monkeypatch.setattr(recorder, "fingerprint", asked.append)
    assert not any(drawn(DataLoader(Noisy(), BATCH), ranks=1)) and not asked
    assert not any(drawn(DataLoader(Noisy(), BATCH))) and asked
