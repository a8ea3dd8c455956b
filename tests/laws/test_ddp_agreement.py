"""The laws of ranks that must agree: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

import pytest

from conformance.laws.law import CHAPTERS
from conformance.laws.subjects import Run
from conformance.trace.events import Collective

from .building import backward, event, forward, right, step
from .building_ddp import ALL_REDUCE, FIRST, SECOND, averaging, both, ddp, local, raised, ranks, started, stepped
from .findings import broken_of, checked, laws_in, tables, the_finding

broken = partial(broken_of, {"ddp"})


def hung(run):
    """The same run, whose ranks neither finished nor raised."""
    ends = ("finished", "raised")
    return Run.read(run.plan.spec, [[vars(e) for e in rank.events if e.event not in ends] for rank in run.ranks])


SHARES = {"orders": [[[[0, 1]], [[2, 3]]]]}


def of_own(rank, *averaged, factor=1.0, off=0.0):
    """A window whose step has the gradient of this rank's own samples, but in ``averaged`` elements the mean plus
    ``off``."""
    own, mean = right([2 * rank, 2 * rank + 1], factor), right(range(4))
    gradients = [mean[index] + off if index in averaged else value for index, value in enumerate(own)]
    return with_gradients(rank, gradients)


def with_gradients(rank, gradients):
    """A window whose step has these gradients, after which the ranks differ."""
    return [event("start"), ddp(0), averaging(), step(gradients=gradients, weights=[float(rank), 0.0])]


#: Rank 1 has a fourth of the samples.
UNEVEN = {"orders": [[[[0, 1, 2]], [[3]]]]}
#: The sum over all samples, divided by the number of each rank's own ones and by the ranks.
OF_OWN = [right(range(4), 4 / (2 * own)) for own in (3, 1)]


def owned(rank):
    """A step of the one parameter that this rank owns, if any, whose new value no other rank gets."""
    start, new = [1.0, 2.0], [0.5, 0.25]
    mine = [new[at] if at == rank else value for at, value in enumerate(start)]
    gradients = [1.0 if at == rank else None for at in range(2)]
    own = [step(optimizer=rank, parameters=[rank], gradients=gradients, weights=mine)] if rank < 2 else []
    return [event("start", weights=start), ddp(0, weights=start), averaging(), own, event("finished", weights=mine)]


def in_groups(rank, *sizes, **averaged):
    """A window whose gradients are averaged in groups of these sizes, one after the other."""
    groups = [[rank - rank % size + other for other in range(size)] for size in sizes]
    return [
        forward(0),
        backward(),
        [event("collective", of="gradients", group=group) for group in groups],
        step(**averaged) if averaged else stepped(rank),
    ]


#: By law: runs that break only this law.
BREAKING = {
    "ddp/average-each-parameter": {
        "the bias left out": lambda: ranks(lambda rank: of_own(rank, 0), **SHARES),
        "a copy averaged": lambda: ranks(lambda rank: of_own(rank), **SHARES),
        "divided for a sum": lambda: ranks(lambda rank: of_own(rank, factor=0.5), **SHARES),
    },
    "ddp/average-over-all-ranks": {
        "in groups of two": lambda: ranks(lambda rank: in_groups(rank, 2), count=4),
    },
    "ddp/equal-start": {
        "apart": lambda: ranks(lambda rank: [started(rank), FIRST]),
        "after a broadcast of less": lambda: ranks(
            lambda rank: [event("collective", op="broadcast_", of="parameters", elements=1), started(rank), FIRST]
        ),
        "on Horovod, after a broadcast": lambda: ranks(
            lambda rank: [event("collective", op="broadcast", via="horovod", of="parameters"), started(rank), FIRST],
            backend="horovod",
        ),
        "on Horovod, without its optimizer": lambda: ranks(
            lambda rank: [started(rank), forward(0), backward(), ALL_REDUCE, stepped(rank)], backend="horovod"
        ),
    },
    "ddp/same-collectives": {
        "another operation": lambda: ranks(
            lambda rank: [event("collective", op="broadcast_" if rank else "allreduce_"), FIRST]
        ),
        "another size": lambda: ranks(lambda rank: [event("collective", elements=rank + 1, bytes=4 * rank + 4), FIRST]),
        "another reduction": lambda: ranks(lambda rank: [event("collective", reduce=("sum", "avg")[rank]), FIRST]),
        "one more": lambda: ranks(lambda rank: [FIRST, *[event("collective", elements=1)] * (rank == 0)]),
        "one left before": lambda: ranks(
            lambda rank: (
                [FIRST, raised("SystemExit")] if rank else [FIRST, ddp(1), averaging()[:2], raised("RuntimeError")]
            )
        ),
        "in one of several groups": lambda: ranks(
            lambda rank: [event("collective", group=[0, 2], op=f"op{rank}")] * (rank != 1),
            count=3,
        ),
    },
    "ddp/identical-weights": {
        "after the first step": lambda: ranks(lambda rank: [ddp(0), averaging(), step(weights=[0.5, float(rank)])]),
        "after the second": lambda: ranks(
            lambda rank: [FIRST, ddp(1), averaging(), step(weights=[float(rank), 0.0], lr=1.0 + rank)]
        ),
        "a step that one rank does not take": lambda: ranks(
            lambda rank: [ddp(0), averaging(), event("skip") if rank else step(weights=[0.0, 0.0])]
        ),
        "a schedule that nobody asked for": lambda: ranks(
            lambda rank: [FIRST, *[event("schedule")] * rank, ddp(1), averaging(), step(weights=[float(rank), 0.0])]
        ),
        "another part of the sum on each rank": lambda: ranks(
            lambda rank: of_own(rank, factor=rank + 1.0),
            **SHARES,
        ),
        "nan on one rank": lambda: ranks(
            lambda rank: [ddp(0), averaging(), step(weights=["nan" if rank else 0.0, 0.0])]
        ),
    },
}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("ddp_agreement", "ddp_collectives", "ddp_reach")


SCALAR = event("collective", elements=1, bytes=4)

#: What breaks no law of the chapter.
ALLOWED = {
    "weights averaged after the step": lambda: ranks(
        lambda rank: [forward(0), backward(), stepped(rank), event("collective", of="parameters"), SECOND]
    ),
    "weights broadcast after the step": lambda: ranks(
        lambda rank: [
            ddp(0),
            averaging(),
            stepped(rank),
            event("collective", op="broadcast_", of="parameters", elements=1),
            SECOND,
        ]
    ),
    "gradients averaged in groups, then in all": lambda: ranks(
        lambda rank: in_groups(rank, 2, 4, gradients=[1.0, 0.0], weights=[0.5, 0.5]), count=4
    ),
    "equal gradients averaged in groups": lambda: ranks(
        lambda rank: in_groups(rank, 2, gradients=[1.0, 0.0], weights=[0.5, 0.5]), count=4
    ),
    "a scalar every window": lambda: both(SCALAR, ddp(0), averaging(), step(), SCALAR, ddp(1), averaging(), step()),
    "evaluation between steps": lambda: both(FIRST, event("collective", op="allgather_", elements=9, bytes=36), SECOND),
    "an overflow that all skip": lambda: ranks(
        lambda rank: [ddp(0), averaging(), event("skip", gradients=["inf", float(rank)])]
    ),
    "shares of an all-to-all": lambda: ranks(
        lambda rank: [event("collective", op="alltoall_base_", elements=rank), FIRST]
    ),
    "unequal shares gathered": lambda: ranks(
        lambda rank: [event("collective", op="allgather_", elements=rank + 1, bytes=4 * rank + 4), FIRST]
    ),
    "a group of one rank": lambda: ranks(lambda rank: [event("collective", group=[rank], op=f"op{rank}"), FIRST]),
    "Horovod's own order": lambda: ranks(
        lambda rank: [
            [forward(0), backward()],
            [event("collective", via="horovod", elements=size, of="gradients") for size in ((1, 2), (2, 1))[rank]],
            step(),
        ],
        backend="horovod",
    ),
    "an error on one rank": lambda: ranks(
        lambda rank: [FIRST, raised()] if rank else [FIRST, ddp(1), averaging()[:2], raised("RuntimeError")]
    ),
    "weights that are not listed": lambda: ranks(
        lambda rank: [event("start", weights=None), ddp(0), averaging(), step(weights=None, gradients=None)]
    ),
    "a step in every micro-batch": lambda: ranks(
        lambda rank: [ddp(0, syncs=False), local(), stepped(rank), ddp(), averaging(), stepped(rank)]
    ),
}


def scaled(scale, *taken):
    return [ddp(0), event("loss_scaled", scale=scale), averaging(scaled=scale), *taken]


#: What the ranks' weights part by, and is for another law.
EXPLAINED = {
    "amp/all-ranks-skip": lambda: ranks(
        lambda rank: scaled(
            4.0,
            event("skip", weights=[0.5, 0.0])
            if rank
            else step(scale=4.0, gradients=["inf", 1.0], weights=["nan", 0.0]),
        )
    ),
    "amp/same-scale-on-all-ranks": lambda: ranks(
        lambda rank: scaled(2.0**rank * 2, step(scale=2.0**rank * 2, weights=[float(rank), 0.0]))
    ),
    "acc/schedule-per-step": lambda: ranks(
        lambda rank: [
            FIRST,
            event("zero_grad"),
            [event("schedule")] * (rank + 1),
            ddp(1),
            averaging(),
            step(weights=[float(rank), 0.0], lr=0.5 - rank / 4),
        ],
        schedule=[1.0, 1.0],
    ),
}


@pytest.mark.parametrize("law", EXPLAINED)
def test_weights_that_part_are_explained_by(law):
    assert broken_of(CHAPTERS, EXPLAINED[law]()) == {law}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "ddp")


def test_weights_after_a_step_are_not_checked_where_more_may_have_made_them():
    assert checked(ALLOWED["weights averaged after the step"](), "ddp/identical-weights") == 1
    assert checked(ALLOWED["evaluation between steps"](), "ddp/identical-weights") == 1
    assert checked(ALLOWED["a scalar every window"](), "ddp/identical-weights") == 2


def test_ranks_that_part_are_told_once():
    run = ranks(lambda rank: [[ddp(k), averaging(), step(weights=[float(rank), k], lr=1.0 + rank)] for k in range(4)])
    finding = the_finding(run, "ddp/identical-weights")
    assert (finding.count, finding.window, finding.ranks) == (1, 0, (1,))
    assert "the learning rate is 1 on rank 0 and 2 on rank 1" in finding.broken.observed


def test_what_is_not_averaged_is_named():
    broken = the_finding(ranks(lambda rank: of_own(rank, 0), **SHARES), "ddp/average-each-parameter").broken
    assert broken.expected == "the gradient of bias averaged over the ranks"
    assert broken.observed.startswith("(-2) on rank 0 and (-6) on rank 1 at step ")
    assert ", each from the rank's own samples, despite allreduce" in broken.observed
    [average] = [one for one in broken.shows if isinstance(one, Collective)]
    assert broken.origin is average and broken.edit.endswith(" at or above origin")
    assert broken.effect == f"The average at {average.line} lacks bias. The ranks train different models from now on."


def test_elements_that_are_wrong_on_all_ranks_alike_are_not_explained_by_a_missing_average():
    run = ranks(lambda rank: of_own(rank, 0, off=1.0), **SHARES)
    assert broken(run) == {"ddp/identical-weights"}


def test_an_average_that_one_rank_lacks_is_not_told_to_be_its_own():
    """Only rank 0 uses the weight, so the average is a half of its own gradient, which is (-3.5)."""
    run = ranks(
        lambda rank: with_gradients(rank, [None if rank else -1.75, -7.5]),
        **SHARES,
        samples={"x": [[1.0], [2.0], [0.0], [0.0]], "y": [2.0, 4.0, 6.0, 8.0], "weight": [1.0] * 4},
    )
    finding = the_finding(run, "ddp/identical-weights").broken
    assert "the gradient of weight[0] is (-1.75) on rank 0 and (–) on rank 1" in finding.observed
    assert finding.fault == "steps a parameter only on ranks that have their own gradient of it"
    assert broken(run) == {"ddp/identical-weights"}


def test_how_ranks_part_is_told():
    def parted(factor, *before):
        run = ranks(
            lambda rank: [
                *[ddp(0), averaging(), *before * (rank == 0)],
                step(gradients=[1.0 + factor * rank, 2.0 + 2.0 * rank], weights=[float(rank), 0.0]),
            ]
        )
        return the_finding(run, "ddp/identical-weights").broken.observed

    assert "(2, 4) on rank 1, 2x in every element" in parted(1.0)
    assert "in every element" not in parted(2.0)
    assert "rank 0 clipped its gradients (train.py:5) and rank 1 did not" in parted(2.0, event("clip"))


def rated(*rates):
    """The steps of a schedule to these learning rates."""
    return [event("schedule", lr_before=[], lr_after=[rate], initial=not at) for at, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("before", "lr", "starts"),
    [
        (lambda rank: rated(0.5 + rank, 0.5), lambda rank: 0.5 + rank, ("schedule", 0)),
        (lambda rank: rated(0.5, 0.5 + rank), lambda rank: 0.5 + rank, ("schedule", 1)),
        (lambda rank: rated(0.5, 0.5), lambda rank: 0.5 + rank, None),
        (lambda rank: rated(0.5, 0.5 + rank), lambda rank: 0.5, None),
        (lambda rank: [event("clip")] * rank, lambda rank: 0.5, ("clip", 0)),
    ],
)
def test_where_ranks_start_to_part(before, lr, starts):
    """At the first rate that differs, if the rates of the step do, or at the clip that only one rank calls."""
    run = ranks(lambda rank: [ddp(0), averaging(), before(rank), step(lr=lr(rank), weights=[float(rank), 0.0])])
    broken = the_finding(run, "ddp/identical-weights").broken
    kinds = [one for one in run.ranks[1].events if starts and one.event == starts[0]]
    assert broken.origin is (kinds[starts[1]] if starts else None)
    assert bool(broken.fault) == bool(broken.advice) == (starts is not None or lr(0) != lr(1))


@pytest.mark.parametrize(
    ("run", "fault", "observed"),
    [
        (
            lambda: ranks(lambda rank: with_gradients(rank, right(range(4), 1.0 + rank)), **SHARES),
            "divides or clips averaged gradients by another number on each rank",
            "the gradients are the correct ones times 1x on rank 0 and 2x on rank 1",
        ),
        (
            lambda: ranks(lambda rank: with_gradients(rank, OF_OWN[rank]), **UNEVEN),
            "divides the gradients of all ranks by the number of each rank's own samples",
            "the gradients are the correct ones times 0.666667x on rank 0 and 2x on rank 1",
        ),
        (
            lambda: ranks(owned, count=3),
            "does not send the weights that only one rank updates to the other ranks",
            "only rank 0 updated weight[0], and rank 1 and rank 2 kept the old value",
        ),
    ],
    ids=["own factor", "own total", "own update"],
)
def test_what_differs_first_is_the_fault(run, fault, observed):
    broken = the_finding(run(), "ddp/identical-weights").broken
    assert broken.fault == fault
    assert broken.observed.endswith(observed)


def test_gradients_of_a_shared_total_that_one_element_keeps_are_not_averaged():
    own = [right(samples, len(samples) / 4) for samples in ([0, 1, 2], [3])]
    run = ranks(lambda rank: with_gradients(rank, [right(range(4))[0], own[rank][1]]), **UNEVEN)
    assert broken(run) == {"ddp/average-each-parameter"}


def test_a_hang_is_explained_by_the_rank_that_did_not_come():
    run = hung(ranks(lambda rank: [FIRST, event("zero_grad")] if rank else [FIRST, ddp(1), averaging()[:2]]))
    assert broken(run) == {"ddp/same-collectives"}
    finding = the_finding(run, "ddp/same-collectives")
    assert finding.window == 1
    broken_by = finding.broken
    assert (broken_by.expected, broken_by.observed, broken_by.why) == (
        "the same collectives in the same order on every rank",
        (
            "rank 0 entered allreduce (gradients, 8 B) (train.py:8), but rank 1 never reached it; its last action was "
            "zero grad (train.py:6)"
        ),
        "a collective needs all of its 2 ranks",
    )
    assert [(event.rank, event.event) for event in finding.broken.shows] == [(1, "zero_grad"), (0, "collective")]


@pytest.mark.parametrize(
    ("count", "effect"), [(2, "Rank 0 waits forever."), (3, "Rank 0 and rank 1 wait forever.")], ids=["one", "two"]
)
def test_all_ranks_that_wait_in_vain_are_named(count, effect):
    last = event("collective", elements=1, group=[*range(count)])
    run = hung(ranks(lambda rank: [FIRST] if rank == count - 1 else [FIRST, last], count))
    assert the_finding(run, "ddp/same-collectives").broken.effect == effect


def test_a_hang_in_which_all_ranks_wait_is_not_explained():
    assert broken(hung(both(FIRST, ddp(1), averaging()[:2]))) == set()


def test_a_window_left_out_by_one_rank_explains_its_hang():
    run = ranks(
        lambda rank: (
            [FIRST, ddp(1), averaging(), stepped(rank)]
            if rank
            else [ddp(0), local(syncs=True), stepped(2), ddp(1), averaging(), stepped(rank)]
        )
    )
    assert broken(run) == {"ddp/all-reduce-every-window"}


def test_weights_that_begin_apart_are_named_unless_all_do():
    def told(last):
        run = ranks(lambda rank: [event("start", weights=[float(rank), last * rank]), FIRST])
        return the_finding(run, "ddp/equal-start").broken.observed

    assert told(0.0).endswith("rank 0 started from (0), rank 1 from (1) of weight[0]")
    assert told(2.0).endswith("rank 0 started from (0, 0), rank 1 from (1, 2)")


def test_ranks_that_begin_with_shards_do_not_begin_apart():
    run = ranks(lambda rank: [event("start", weights=[None, 1.0] if rank else [0.0, None]), FIRST])
    assert "ddp/equal-start" not in broken(run)
