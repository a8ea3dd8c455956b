"""What becomes of a model's buffers: who owns them, and what is lost or counted too often."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.cases.case import Case
from conformance.verdict.beside_weights import Fate, counted_buffers
from conformance.workloads.model import Counting

CASE = Case("ddp", 2, 1, "fp32", "buffers")
#: The samples of each rank in a window.
SHARE = sum(map(len, CASE.problem.windows[0].shares[0]))
WINDOWS = CASE.problem.windows
#: What the samples of each rank add to the sum in each window.
ADDS = [
    [
        float(Counting.SCALE * sum(x**2 for at in window.shares[rank][0] for x in window.batch[at].x))
        for window in WINDOWS
    ]
    for rank in (0, 1)
]


class Rank:
    """A rank of which these events are known, and that each forward with gradients trains."""

    def __init__(self, events):
        self.events = events

    def of(self, kind):
        return self.events

    def between(self, kind, *, before):
        return [SimpleNamespace(extra=False)]


def forward(held, add, how):
    """One forward, and what it leaves."""
    after = held[0] + SHARE, held[1] + add
    return SimpleNamespace(how=how, model=0, training=True, before=held, after=after), after


def trained(between=lambda held, window: held, others=()):
    """What both ranks see if ``between`` makes of their buffers what they go on with. ``others``: how forwards with
    the same samples go on, after each of training."""
    held, events = [(0.0, 0.0), (0.0, 0.0)], ([], [])
    for window in range(len(WINDOWS)):
        for rank in (0, 1):
            for how in ("with gradients", *others):
                event, held[rank] = forward(held[rank], ADDS[rank][window], how)
                events[rank].append(event)
        held = between(held, window)
    for rank in (0, 1):
        last = SimpleNamespace(how="at the end", model=0, training=False, before=held[rank], after=held[rank])
        events[rank].append(last)
    return counted_buffers(CASE, [SimpleNamespace(ranks=[Rank(own) for own in events])])


def mean(held, window):
    return [tuple((one + two) / 2 for one, two in zip(*held, strict=True))] * 2


def sum_of_additions(held, window):
    """Both have held the same, to which each has added its own."""
    old = (2 * window * SHARE, sum(ADDS[0][:window] + ADDS[1][:window]))
    return [tuple(one + two - before for one, two, before in zip(*held, old, strict=True))] * 2


@pytest.mark.parametrize(
    ("between", "way"),
    [
        (lambda held, window: held, "buffers=own"),
        (lambda held, window: [held[0]] * 2, "buffers=one rank"),
        (lambda held, window: [held[1]] * 2, "buffers=one rank"),
        (mean, "buffers=reduced"),
        (sum_of_additions, "buffers=reduced"),
    ],
)
def test_who_owns_them_is_open(between, way):
    assert trained(between) == Fate(owner=way)


def summed_again(held, window):
    return [tuple(map(sum, zip(*held, strict=True)))] * 2


def added_up_in_two_windows(held, window):
    return summed_again(held, window) if window < 2 else held


def without_sums(held, window):
    return [(samples, 0.0) for samples, _ in held]


def one_too_many(held, window):
    return [held[0], (held[1][0] + 1, held[1][1])]


def of_the_start(held, window):
    return [(0.0, 0.0)] * 2 if window == 2 else held


def of_rank_1_lost(held, window):
    return [held[0], (0.0, 0.0)]


@pytest.mark.parametrize(
    ("between", "said"),
    [
        (summed_again, "samples count twice in the model's buffers: those of rank 0"),
        (added_up_in_two_windows, "samples count twice in the model's buffers: those of rank 0"),
        (without_sums, "the model's buffers were changed between two forwards: those of rank 0"),
        (one_too_many, "the model's buffers were changed between two forwards: those of rank 1"),
        (of_the_start, "the model's buffers were lost: those of rank 0"),
        (of_rank_1_lost, "the model's buffers were lost: those of rank 1"),
    ],
)
def test_what_is_lost_or_added_up_again(between, said):
    assert (trained(between).wrong or "").startswith(said)


@pytest.mark.parametrize(
    ("how", "said"),
    [("recomputed", "that a backward computes again"), ("without gradients", "that train nothing")],
)
def test_other_forwards_that_count(how, said):
    assert said in (trained(others=[how]).wrong or "")


def test_what_other_forwards_counted_may_be_taken_back():
    def between(held, window):
        return [
            (samples - 2 * SHARE, total - 2 * adds[window]) for (samples, total), adds in zip(held, ADDS, strict=True)
        ]

    assert trained(between, others=["without gradients", "recomputed"]) == Fate(owner="buffers=own")


def test_a_copy_that_is_only_evaluated_has_buffers_of_its_own():
    """As the average of the weights has, of which running statistics are computed at the end."""

    def of_copy(how, before, after):
        return SimpleNamespace(how=how, model=1, training=True, before=before, after=after)

    events = [[], []]
    for own, adds in zip(events, ADDS, strict=True):
        held = (0.0, 0.0)
        for add in adds:
            event, held = forward(held, add, "with gradients")
            own.append(event)
        twice = 2 * held[0], held[1]
        own += [of_copy("without gradients", held, twice), of_copy("at the end", twice, twice)]
    assert counted_buffers(CASE, [SimpleNamespace(ranks=[Rank(own) for own in events])]) == Fate(owner="buffers=own")


def test_models_that_train_in_turn_are_not_judged():
    events = [SimpleNamespace(**{**vars(forward((0.0, 0.0), 1.0, "with gradients")[0]), "model": at}) for at in (0, 1)]
    found = counted_buffers(CASE, [SimpleNamespace(ranks=[Rank(events * 2)] * 2)])
    assert (found.unknown or "").startswith("rank 0 trains copies of the model in turn")


def test_forwards_that_nobody_sees_are_not_judged():
    found = counted_buffers(CASE, [SimpleNamespace(ranks=[Rank([])] * 2)])
    assert (found.unknown or "").startswith("no forward of the model with buffers is seen in rank 0")
