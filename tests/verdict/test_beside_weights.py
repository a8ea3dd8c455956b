"""Buffers, random numbers and running averages of trainers with correct weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.cases.case import Case
from conformance.verdict.beside_weights import Fate, counted_buffers, resumed_averages, resumed_draws
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
    """A rank with these events, whose forwards with gradients all train."""

    def __init__(self, events):
        self.events = events

    def of(self, kind):
        return self.events

    def between(self, kind, *, before):
        return [SimpleNamespace(extra=False)]


def forward(held, add, how):
    """One forward, and its result."""
    after = held[0] + SHARE, held[1] + add
    return SimpleNamespace(how=how, model=0, training=True, before=held, after=after), after


def trained(between=lambda held, window: held, others=()):
    """What both ranks see if ``between`` changes their buffers between windows. ``others``: what further forwards with
    the same samples do, after each one of training."""
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


def said_of(fate):
    return "" if fate.wrong is None else fate.wrong.text


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
    ("between", "said", "advice"),
    [
        (summed_again, "samples count twice in the model's buffers: rank 0", "add only new samples"),
        (added_up_in_two_windows, "samples count twice in the model's buffers: rank 0", "add only new samples"),
        (without_sums, "the model's buffers changed between two forwards: rank 0", ""),
        (one_too_many, "the model's buffers changed between two forwards: rank 1", ""),
        (of_the_start, "the model's buffers were lost: rank 0", "keep the buffers"),
        (of_rank_1_lost, "the model's buffers were lost: rank 1", "keep the buffers"),
    ],
)
def test_what_is_lost_or_added_up_again(between, said, advice):
    found = trained(between).wrong
    assert found.text.startswith(said)
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


@pytest.mark.parametrize(
    ("how", "said"),
    [("recomputed", "that a backward recomputes"), ("without gradients", "without training")],
)
def test_other_forwards_that_count(how, said):
    assert said in said_of(trained(others=[how]))


def test_what_other_forwards_counted_may_be_taken_back():
    def between(held, window):
        return [
            (samples - 2 * SHARE, total - 2 * adds[window]) for (samples, total), adds in zip(held, ADDS, strict=True)
        ]

    assert trained(between, others=["without gradients", "recomputed"]) == Fate(owner="buffers=own")


def test_a_copy_that_is_only_evaluated_has_buffers_of_its_own():
    """Such as for the average of the weights, whose running statistics are computed at the end."""

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
    assert found.unknown.text.startswith("the buffers of rank 0 cannot be judged: it trains copies")
    assert found.unknown.advice == "train one copy at a time"


def test_forwards_that_nobody_sees_are_not_judged():
    found = counted_buffers(CASE, [SimpleNamespace(ranks=[Rank([])] * 2)])
    assert found.unknown.text.startswith("the buffers of rank 0 cannot be judged: no forward")
    assert found.unknown.advice == "call the module that `task.model()` returns, or a copy of it"


def drawing(*ranks):
    """Two lives of ranks, each given as the states in which the draws of each life begin; a state leads to the next."""
    lives = zip(*ranks, strict=True)
    return [SimpleNamespace(ranks=[_drawing_rank(begins) for begins in life]) for life in lives]


def _drawing_rank(begins):
    draws = [SimpleNamespace(before=before, after=before + 1) for before in begins]
    return SimpleNamespace(of=lambda kind: draws)


@pytest.mark.parametrize(
    ("ranks", "wrong"),
    [
        ([([0, 1], [2, 3])], None),
        # A backward that computes forwards again, from the last to the first.
        ([([0, 1, 1, 0], [2])], None),
        ([([0, 1], [0])], "rank 0 repeats the random numbers of its forward 1 "),
        ([([0, 1], [1])], "rank 0 repeats the random numbers of its forward 2 "),
        ([([0, 1], [2]), ([10, 11], [2])], "rank 1 draws the random numbers of rank 0"),
        ([([0, 1], [2]), ([0, 1], [2])], None),
    ],
)
def test_what_is_drawn_next(ranks, wrong):
    found = resumed_draws(drawing(*ranks))
    assert found.unknown is None
    assert said_of(found).startswith(wrong or "")
    assert (found.wrong is None) == (wrong is None)


@pytest.mark.parametrize("resumed", [[7], []])
def test_what_cannot_be_told(resumed):
    """A trainer may draw numbers itself before its model does, and its forwards may not be seen."""
    found = resumed_draws(drawing(([0, 1], resumed)))
    assert found.wrong is None
    assert found.unknown is not None


def averaging(*ranks):
    """Two lives of ranks. Each is given by its updates: the number of the average, how many came before, its value
    before and after it."""
    return [SimpleNamespace(ranks=[_rank(updates) for updates in life]) for life in zip(*ranks, strict=True)]


def _rank(updates):
    names = ("average", "updates", "before", "after")
    found = [SimpleNamespace(**dict(zip(names, update, strict=True))) for update in updates]
    return SimpleNamespace(of=lambda kind: found)


BEFORE = [(0, 0, 0, 1), (0, 1, 1, 2)]
RIGHT = [(0, 2, 2, 3)]
ANEW = [(0, 0, 2, 3)]


@pytest.mark.parametrize("after", [RIGHT, [], [(0, 2, 2, 3), (1, 0, 0, 3)]])
@pytest.mark.parametrize("at_epoch", [False, True])
def test_averages_that_go_on_or_that_a_trainer_may_mean(after, at_epoch):
    assert resumed_averages(averaging((BEFORE, after)), at_epoch=at_epoch).wrong is None


def test_an_average_that_begins_anew():
    found = resumed_averages(averaging((BEFORE, RIGHT), (BEFORE, ANEW)), at_epoch=False)
    assert found.wrong.text.startswith(
        "rank 1 restarts its average of the weights after the resume, although it had 2 up"
    )


@pytest.mark.parametrize("after", [(0, 2, 5, 6), (0, 1, 2, 3)])
def test_an_average_of_other_values_or_of_another_number_of_updates(after):
    found = resumed_averages(averaging((BEFORE, [after])), at_epoch=False)
    assert found.wrong.text.startswith("rank 0 resumes with another average of the weights")


def test_a_trainer_that_begins_averages_anew_before_the_stop_may_do_so_after_it():
    again = [*BEFORE, (0, 0, 2, 7)]
    several = [*BEFORE, (1, 0, 0, 7)]
    assert resumed_averages(averaging((again, ANEW)), at_epoch=False).wrong is None
    assert resumed_averages(averaging((several, [*ANEW, (1, 0, 0, 7)])), at_epoch=False).wrong is None
    assert resumed_averages(averaging((BEFORE, ANEW)), at_epoch=True).wrong is None
