"""What a data set holds, and what it is cut from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import conformance
from conformance.watch.recording.holdings import fingerprint, fingerprint_of_whole, settings


class Files:
    """Of paths, or of arrays, or of what has no name."""

    def __init__(self, entries):
        self.transform, self.entries = object(), entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, at):
        raise AssertionError("a data set was asked for a sample")


class Wrapped(Dataset):
    """Makes something of the samples of another one."""

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
    """Is asked for what it holds by nobody but its user."""

    def __getitem__(self, at):
        raise AssertionError("a list of the script's own was read")


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
def test_what_a_data_set_holds(makes, is_known):
    one, again, other = (fingerprint(makes(rows)) for rows in (ROWS[:6], ROWS[:6], ROWS[6:]))
    assert one == again
    assert (one is not None and one != other) == is_known


def test_numbers_and_texts_of_a_data_set_tell_it_from_others():
    def of(**fields):
        data = Files([1])
        vars(data).update(fields)
        return settings(data)

    assert of() is None
    assert len({of(root="a"), of(root="b"), of(rank=1), of(root=Path("a"), rank=0), of()}) == 5
    assert of(root="a") == of(root="a", transform=print)


def test_of_large_entries_few_bytes_are_read():
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
def test_what_a_data_set_is_cut_from(cut, is_known):
    """Two ranks hold parts of the same; where each has drawn its own, they do not."""
    one, other = (fingerprint_of_whole(cut(ROWS, rank)) for rank in range(2))
    assert one == other
    assert (one is not None) == is_known
    assert not is_known or one != fingerprint_of_whole(cut(ROWS + 1, 0))


@pytest.mark.parametrize(
    "inputs",
    [ROWS.to_sparse(), torch.view_as_complex(ROWS).conj(), ROWS._neg_view(), ROWS.to_mkldnn()],
)
def test_rows_of_other_layouts_end_no_recording(inputs):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    called = torch.nn.Module()
    called.forward = lambda given: model(ROWS) * given.size(0)
    with conformance.watching() as findings:
        for _ in range(3):
            optimizer.zero_grad()
            called(inputs).square().mean().backward()
            optimizer.step()
    assert findings.conserved == findings.steps == 3
