"""Which samples ranks draw, where the inputs that are made of them say nothing."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.inputs import Inputs
from conformance.watch.ledger import Ledger
from conformance.watch.recording import loading
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
        monkeypatch.setattr(loading, "world", lambda: ranks)
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


def read_by(ranks, inputs_of):
    """What is found of ranks, each of which reads those samples in turn, and makes inputs of its own of them."""
    findings = Findings()
    inputs = Inputs(len(ranks), findings)
    made = iter(range(1_000_000))
    for step in range(0, 64, 2):
        for rank, samples in enumerate(ranks):
            drawn = samples[step : step + 2]
            inputs.feed(rank, Entered(inputs_of(drawn, made), True, None, None, drawn))
    inputs.averaged(is_alike=False)
    inputs.finish(averages=True)
    return findings


def anew(drawn, made):
    return [next(made) for _ in drawn]


SAMPLES = [*range(1000, 1064)]


def test_which_of_several_batches_a_rank_uses_is_not_known(drawn):
    class InWindows:
        """Takes one of two that were loaded."""

        def __iter__(self):
            batches = iter(DataLoader(Noisy(), BATCH))
            return (first for first, _ in zip(batches, batches, strict=True))

    assert not any(drawn(InWindows()))


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ((SAMPLES, SAMPLES), "all ranks drew the same samples in 32 of 32 forwards"),
        ((SAMPLES, random.Random(0).sample(SAMPLES, 64)), "of the samples that a rank drew were drawn on another"),
        (([*range(64)], SAMPLES), None),
        (([7, 8] * 32, [7, 8] * 32), None),  # few say nothing
        (([], []), None),  # not known
    ],
)
def test_ranks_that_draw_the_same_samples_are_told(ranks, says):
    findings = read_by(ranks, anew)
    assert not findings.causes
    assert ([says in why for why in findings.open] == [True]) if says else not findings.open


def test_of_the_same_inputs_only_these_are_named():
    findings = read_by((SAMPLES, SAMPLES), lambda drawn, made: drawn)
    assert [*findings.open] == ["ranks were fed the same inputs, and computed other gradients of them"]


@pytest.mark.parametrize(
    ("own", "common", "is_open", "broken"),
    [(40, 30, True, False), (20, 15, False, False), (80, 20, False, False), (0, 16, False, True)],
)
def test_inputs_that_become_common(own, common, is_open, broken):
    """After so many steps with data of their own, ranks have the same for so many: as in a phase at the end."""
    findings = Findings()
    inputs = Inputs(2, findings)
    for step in range(own + common):
        for rank in range(2):
            inputs.feed(rank, Entered([step, -step - (1000 * rank if step < own else 0)], True, None))
        inputs.averaged(is_alike=step >= own)
    inputs.finish(averages=True)
    assert [law for law, _ in findings.causes] == ["watch/own-data"] * broken
    assert [f"in the last {common} of {own + common} forwards" in why for why in findings.open] == [True] * is_open


@pytest.mark.parametrize(("sampler", "is_open"), [(-1, True), (None, False)])
def test_one_of_two_loaders_gives_all_ranks_the_same(sampler, is_open):
    findings = Findings()
    inputs = Inputs(2, findings)
    for step in range(20):
        for rank in range(2):
            inputs.feed(rank, Entered([step, 1000 * (rank + 1)], True, None, 3))
            inputs.feed(rank, Entered([step, -step], True, None, sampler))
        inputs.averaged(is_alike=False)
    inputs.finish(averages=True)
    told = "a loader without a `DistributedSampler` gave all ranks the same in 20 of 20 forwards"
    assert ([*findings.open], findings.causes) == ([told] * is_open, {})


def test_a_rank_alone_is_not_asked_what_it_draws(drawn, monkeypatch):
    asked = []
    monkeypatch.setattr(loading, "fingerprint", asked.append)
    assert not any(drawn(DataLoader(Noisy(), BATCH), ranks=1)) and not asked
    assert not any(drawn(DataLoader(Noisy(), BATCH))) and asked
