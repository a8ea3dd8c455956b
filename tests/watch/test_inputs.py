"""Inputs of models, samples that ranks draw, contents of data sets, and the data that these are cut from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import conformance
from conformance.watch.recording import inputs as recorder
from conformance.watch.recording.holdings import (
    fingerprint,
    fingerprint_of_whole,
    fingerprints,
    joint_fingerprints,
    settings,
)
from conformance.watch.records import Backward, Entered

from .trained import recording_in


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, *args, **kwargs):
        return self.layer(torch.ones(3, 4))


FED = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((FED,), {}),
        ((), {"x": FED}),
        (({"labels": None, "x": FED},), {}),
        (([FED, torch.ones(3)],), {}),
        (((None, [{"x": FED}]),), {}),
        ((nn.Parameter(torch.ones(2)),), {"x": FED}),
    ],
)
def test_the_first_data_tensor_of_the_inputs_is_found(tmp_path, args, kwargs):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording_in(tmp_path, optimizer) as recording:
        model(*args, **kwargs)
        entered = [one for one in recording._waiting if isinstance(one, Entered)]
        recording.flush()
    assert [one.rows for one in entered] == [fingerprints(FED)]


@pytest.mark.parametrize("size", [28, 32, 224, 225, 256, 512])
def test_images_with_equal_margins_have_different_fingerprints(size):
    """Only some elements of large images are read."""
    images = torch.zeros(8, 3, size, size)
    images[:, :, size // 4 : -size // 4, size // 4 : -size // 4] = torch.arange(1.0, 9.0).reshape(8, 1, 1, 1)
    assert len({*fingerprints(images)}) == 8
    assert fingerprints(images) == fingerprints(images.clone())


@pytest.mark.parametrize("changed", [0, 1])
def test_a_fingerprint_is_of_all_inputs(changed):
    batches = [torch.arange(12.0).reshape(4, 3), torch.arange(4)]
    before = joint_fingerprints(torch.zeros(4), *batches)
    batches[changed][2] += 1
    after = joint_fingerprints(torch.zeros(4), *batches)
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, True, False, True]


def test_an_input_with_another_number_of_rows_belongs_to_each_row():
    batch, scale = torch.zeros(4), torch.ones(2)
    before = joint_fingerprints(batch, torch.arange(4), scale)
    after = joint_fingerprints(batch, torch.arange(4), scale + 1)
    assert len(before) == 4
    assert {*before}.isdisjoint(after)


def test_inputs_with_different_numbers_of_rows(conformance_watch):
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


NUMBER, BATCH = 24, 4


class Noisy(Dataset):
    """Augments samples differently each time."""

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
    """Generates samples without stored data."""

    def __len__(self):
        return NUMBER

    def __getitem__(self, index):
        return torch.randn(3), index % 5


class EverySecondTwice:
    """A sampler of the script, which may give ranks the same samples on purpose."""

    def __iter__(self):
        return iter([index for index in range(0, NUMBER, 2) for _ in range(2)])

    def __len__(self):
        return NUMBER


@pytest.fixture
def drawn(tmp_path_factory, monkeypatch):
    """The samples that a rank draws from a loader."""

    def read(loader, part=slice(None), epochs=1, seed=0, ranks=2):
        torch.manual_seed(seed)
        monkeypatch.setattr(recorder, "world", lambda: ranks)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path_factory.mktemp("records")
        with recording_in(folder, optimizer) as recording:
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
def test_a_sample_is_recognized_in_the_next_epoch(drawn, workers, labelled):
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
def test_equal_indices_in_other_data_are_other_samples(drawn, other):
    own = {one for row in drawn(DataLoader(Noisy(), BATCH)) for one in row}
    assert own.isdisjoint(one for row in drawn(DataLoader(other, BATCH)) for one in row)


def test_samples_of_a_data_set_around_another_are_known(drawn):
    class Around(Dataset):
        def __init__(self, base):
            self.base = base

        def __len__(self):
            return NUMBER

        def __getitem__(self, index):
            return self.base[index]

    assert all(drawn(DataLoader(Around(Noisy()), BATCH)))


@pytest.mark.parametrize(("other", "is_known"), [(torch.eye(3).to_sparse().int(), False), (torch.zeros(0, 3), True)])
def test_odd_tensors_in_a_batch_do_not_stop_the_recorder(drawn, other, is_known):
    loader = DataLoader(Noisy(), BATCH, collate_fn=lambda some: [torch.stack([x for x, _ in some]), other])
    assert all(drawn(loader)) == is_known


def test_a_part_of_a_batch_has_no_samples(drawn):
    assert not any(drawn(DataLoader(Noisy(), BATCH), slice(0, None, 2)))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(MadeUp(), BATCH),
        DataLoader(Noisy(), BATCH, sampler=EverySecondTwice()),
        DataLoader(Noisy(), BATCH, sampler=WeightedRandomSampler([1.0] * NUMBER, NUMBER)),
        DataLoader(Noisy(), BATCH, sampler=RandomSampler(range(NUMBER), replacement=True)),
        DataLoader(Noisy(), BATCH, collate_fn=lambda some: torch.stack([x for x, _ in some[::2]])),
    ],
)
def test_samples_without_a_number_are_known_by_their_content(drawn, loader):
    """It may be another one in the next epoch."""
    rows = drawn(loader, epochs=2)
    assert all(rows)
    assert {*rows[0]}.isdisjoint(rows[len(rows) // 2])


@pytest.mark.parametrize(("ahead", "together", "expected"), [(0, 1, {1}), (1, 1, {1}), (0, 2, {2})])
def test_a_batch_that_is_fetched_ahead_belongs_to_its_own_pass(tmp_path, ahead, together, expected):
    """together: batches of a pass."""
    model = torch.nn.Linear(3, 1)
    with recording_in(tmp_path, torch.optim.SGD(model.parameters(), lr=0.1)) as recording:
        for _ in range(2):
            batches = iter(DataLoader(Noisy(labelled=False), BATCH))
            waiting = [next(batches) for _ in range(ahead)]
            for batch in batches:
                waiting += [batch, *(next(batches) for _ in range(together - 1))]
                model(torch.cat([waiting.pop(0) for _ in range(together)])).sum().backward()
            for batch in waiting:
                model(batch).sum().backward()
        passes = [one.batches for one in recording._waiting if isinstance(one, Backward)]
        recording.flush()
    # The first of two batches may be the next pass's.
    assert {*passes[1:]} - ({1} if together == 2 else set()) == expected


def test_samples_of_one_of_several_batches_are_unknown(drawn):
    class InWindows:
        """Yields one of two loaded batches."""

        def __iter__(self):
            batches = iter(DataLoader(Noisy(), BATCH))
            return (first for first, _ in zip(batches, batches, strict=True))

    assert not any(drawn(InWindows()))


def test_samples_of_a_single_rank_are_not_recorded(drawn, monkeypatch):
    asked = []
    monkeypatch.setattr(recorder, "fingerprint", asked.append)
    assert not any(drawn(DataLoader(Noisy(), BATCH), ranks=1)) and not asked
    assert all(drawn(DataLoader(Noisy(), BATCH))) and asked


class Files:
    """A data set of paths, arrays or other objects."""

    def __init__(self, entries):
        self.transform, self.entries = object(), entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, at):
        raise AssertionError("a data set was asked for a sample")


class Wrapped(Dataset):
    """A data set that transforms the samples of another one."""

    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)


class WithoutLength(Dataset):
    def __init__(self, entries):
        self.entries = entries


class Raising(Files):
    def __len__(self):
        raise NotImplementedError


class Counting(list):
    """A list that must not be read."""

    def __getitem__(self, at):
        raise AssertionError("a list of the script was read")


def cyclic(rows):
    found = [int(rows[0, 0])]
    found.append(found)
    return Files(found)


ROWS = torch.arange(24.0).reshape(12, 2)


@pytest.mark.parametrize(
    ("makes", "is_known"),
    [
        (lambda rows: TensorDataset(rows, rows[:, 0]), True),
        (lambda rows: rows, True),
        (lambda rows: TensorDataset(rows.bfloat16(), rows > 0, rows.to_sparse()), True),
        (lambda rows: Files(list(rows)), True),
        (lambda rows: rows.to("meta"), False),
        (lambda rows: Subset(Files([0]), [int(row[0]) for row in rows]), True),
        (lambda rows: Files([f"{row[0]}.png" for row in rows]), True),
        (lambda rows: Files(np.asarray(rows)), True),
        (lambda rows: Files([(f"{row[0]}.png", 3) for row in rows]), True),
        (lambda rows: Files([object() for _ in rows]), False),
        (lambda rows: range(len(rows)), False),
        (lambda rows: Wrapped(TensorDataset(rows)), True),
        (lambda rows: Wrapped(Wrapped(Files(list(rows)))), True),
        (lambda rows: ConcatDataset([TensorDataset(rows[:2]), TensorDataset(rows[2:])]), True),
        (lambda rows: Subset(TensorDataset(rows), range(3)), True),
        (lambda rows: Subset(Files([object()]), [int(row[0]) for row in rows]), False),
        (lambda rows: Files([{"path": f"{row[0]}.png", "label": 3} for row in rows]), True),
        (lambda rows: Files([Path(f"{row[0]}.png") for row in rows]), True),
        (lambda rows: Files(["the same to begin with " * 40 + str(row) for row in rows]), True),
        (lambda rows: Files([row.repeat(10_000) for row in rows]), True),
        (lambda rows: WithoutLength(rows), False),
        (lambda rows: Raising(rows), False),
        (lambda rows: Files(Counting(rows)), False),
        (cyclic, False),
    ],
)
def test_fingerprints_of_data_sets(makes, is_known):
    one, again, other = (fingerprint(makes(rows)) for rows in (ROWS[:6], ROWS[:6], ROWS[6:]))
    assert one == again
    assert (one is not None and one != other) == is_known


def test_numbers_and_texts_distinguish_data_sets():
    def of(**fields):
        data = Files([1])
        vars(data).update(fields)
        return settings(data)

    assert of() is None
    assert len({of(root="a"), of(root="b"), of(rank=1), of(root=Path("a"), rank=0), of()}) == 5
    assert of(root="a") == of(root="a", transform=print)


def test_only_some_bytes_of_large_entries_are_read():
    class Entries(np.ndarray):
        def tobytes(self):
            read.append(self.nbytes)
            return super().tobytes()

    read = []
    assert fingerprint(Files(np.zeros((20, 100_000)).view(Entries))) is not None
    assert 0 < sum(read) < 50_000


@pytest.mark.parametrize(
    ("cut", "is_known"),
    [
        (lambda rows, rank: TensorDataset(rows[rank::2], rows[rank::2, 0]), True),
        (lambda rows, rank: TensorDataset(rows.chunk(2)[rank]), True),
        (lambda rows, rank: Subset(TensorDataset(rows), range(rank, 12, 2)), True),
        (lambda rows, rank: Files(rows.numpy()[rank::2]), True),
        (lambda rows, rank: Files([(row, 3) for row in rows[rank::2]]), True),
        (lambda rows, rank: Files([row.clone() for row in rows[rank::2]]), False),
        (lambda rows, rank: TensorDataset(rows[rank::2].clone()), False),
        (lambda rows, rank: TensorDataset(rows.to_sparse()), False),
        (lambda rows, rank: Files([]), False),
    ],
)
def test_fingerprints_of_the_data_that_a_data_set_is_cut_from(cut, is_known):
    """Two ranks have parts of the same data."""
    one, other = (fingerprint_of_whole(cut(ROWS, rank)) for rank in range(2))
    assert one == other
    assert (one is not None) == is_known
    assert not is_known or one != fingerprint_of_whole(cut(ROWS + 1, 0))


@pytest.mark.parametrize(
    "inputs",
    [ROWS.to_sparse(), torch.view_as_complex(ROWS).conj(), ROWS._neg_view(), ROWS.to_mkldnn()],
)
def test_rows_of_other_layouts_do_not_stop_the_recorder(inputs):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    called = torch.nn.Module()
    called.forward = lambda given: model(ROWS) * given.size(0)
    with conformance.watching() as watch:
        for _ in range(3):
            optimizer.zero_grad()
            called(inputs).square().mean().backward()
            optimizer.step()
    assert watch.findings.conserved == watch.findings.steps == 3


def test_a_sampler_whose_length_raises_an_error_is_recorded(drawn):
    class Endless(RandomSampler):
        def __len__(self):
            raise NotImplementedError

    assert all(drawn(DataLoader(Noisy(), BATCH, sampler=Endless(range(NUMBER)))))
