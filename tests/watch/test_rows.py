"""Which rows ranks have read, kept in bounded memory, shows whether they read each other's."""

import random
import sys

import pytest

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.inputs import Inputs
from conformance.watch.judging.rows import Rows
from conformance.watch.records import Entered


def read(fingerprints, batch=100):
    """What is kept of an epoch, and whether a row came twice."""
    rows = Rows()
    return rows, all(rows.add(fingerprints[n : n + batch]) for n in range(0, len(fingerprints), batch))


def drawn(number, seed=0):
    return random.Random(seed).sample(range(2**32), number)


@pytest.mark.parametrize("number", [100, 3000, 30_000])
def test_shards_share_nothing(number):
    data = drawn(number)
    (own, is_new), (theirs, _) = read(data[::2]), read(data[1::2])
    assert is_new
    assert own.shared(theirs) == 0


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
            while rows.add(draw.sample(range(number), number // 3)):
                pass
            both.append(rows)
        assert both[0].shared(both[1]) == 0


@pytest.mark.parametrize("number", [50, 3000, 30_000])
def test_a_second_epoch_is_noticed(number):
    data = drawn(number, 2)
    rows, _ = read(data)
    assert not read(data + data)[1]
    assert not all(rows.add([row]) for row in data)


def test_memory_is_bounded():
    def size(number):
        return sys.getsizeof(read(drawn(number, 3))[0]._kept)

    assert size(50_000) <= size(2000)


@pytest.mark.parametrize("reads_all", [False, True])
def test_what_all_ranks_read_together_counts_for_no_rank(reads_all):
    """As a learning-rate finder does, before each rank reads its own data, or all."""
    findings, data = Findings(), drawn(64, 4)
    inputs = Inputs(2, findings)
    for rank in range(2):
        own = random.Random(rank).sample(data, 64) if reads_all else data[rank::2]
        for n in range(0, len(own), 2):
            inputs.feed(rank, Entered([n, n + 1], True, None))
            inputs.feed(rank, Entered(own[n : n + 2], True, None))
    inputs.finish(averages=True)
    assert ["watch/own-data" in key for key in findings.causes] == [True] * reads_all
