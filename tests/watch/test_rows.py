"""Which rows ranks have read, kept in bounded memory, shows whether they read each other's."""

import random

import pytest

from conformance.watch.judging.samples import _MOST, Rows


def read(fingerprints, batch=100, epoch=0):
    """What is kept of an epoch, and whether no row came twice."""
    rows, are_new = Rows(), True
    for at in range(0, len(fingerprints), batch):
        are_new &= rows.are_new(fingerprints[at : at + batch])
        rows.add(fingerprints[at : at + batch], epoch)
    return rows, are_new


def drawn(number, seed=0):
    return random.Random(seed).sample(range(2**32), number)


@pytest.mark.parametrize("number", [100, 3000, 30_000])
def test_shards_share_nothing_and_a_second_epoch_reads_all_again(number):
    data = drawn(number)
    (own, are_new), (theirs, _) = read(data[::2]), read(data[1::2])
    assert are_new and not own.again
    assert own.shared(theirs) == 0
    assert not read(data + data)[1]
    kept = own.common(own)
    assert 0 < len(kept) <= _MOST
    own.add(data[::2], epoch=1)
    assert own.again == kept


@pytest.mark.parametrize(("lengths", "share"), [((3000, 3000), 0.3), ((50_000, 50_000), 0.5), ((50_000, 8000), 0.5)])
def test_ranks_that_shuffle_everything_share_what_they_happen_to(lengths, share):
    data = drawn(round(max(lengths) / share), 1)
    own, theirs = (read(random.Random(seed).sample(data, length))[0] for seed, length in enumerate(lengths))
    # Five standard deviations of a share among 64 rows or more.
    assert own.shared(theirs) == pytest.approx(share, abs=5 * 0.5 / 8)


@pytest.mark.parametrize(("number", "batch", "share"), [(12, 4, 0), (20, 4, 1), (64, 64, 0), (64, 32, 1), (12, 12, 0)])
def test_rows_in_one_batch_or_few_say_nothing(number, batch, share):
    rows = [read(list(range(number)), batch)[0] for _ in range(2)]
    assert rows[0].shared(rows[1]) == share


@pytest.mark.parametrize("number", [24, 64, 300, 2000])
def test_ranks_that_draw_each_batch_anew_share_nothing(number):
    """Of a set so small that two batches have much in common: once in some 20,000 pairs of ranks no row would come
    again for as long as it takes."""
    for seed in range(100):
        both = []
        for rank in range(2):
            rows, draw = Rows(), random.Random(1000 * rank + seed)
            while rows.are_new(batch := draw.sample(range(number), number // 3)):
                rows.add(batch)
            both.append(rows)
        assert both[0].shared(both[1]) == 0
