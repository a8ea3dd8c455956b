"""The laws of clipping: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, event, forward, hold, micro_batch, step
from .building_ddp import ALL_REDUCE
from .findings import all_checked, broken_of, checked, found, laws_in, tables

APART = [[2.0, 0.0], [0.0, 1.0]]
HELD = event("optimizer")
broken = partial(broken_of, {"clip"})


def clip(*parameters, **fields):
    return event("clip", parameters=[*parameters] or [0, 1], **fields)


def average(**fields):
    return event("collective", **{"of": "gradients", **fields})


def ranks(*bodies, **changes):
    """What comes between the last backward and the step, on each rank."""
    return a_run(*([HELD, micro_batch(0), body, step()] for body in bodies), **{"backend": "ddp", **changes})


def alone(*events, first=HELD, **changes):
    """One rank with one micro-batch before these."""
    return a_run([first, micro_batch(0), *events], **changes)


def clipped_apart():
    return ranks(*([clip(gradients=own, norm=max(own)), average()] for own in APART))


def shard(held, gradients, factor):
    change = [] if factor is None else [event("gradient_change", parameters=[held], factor=factor)]
    return [forward(0), event("shards", held=[held]), backward(), change, step(gradients=gradients)]


def shards(*factors, gradients=(1.0, 1.0), kind="norm"):
    """Two ranks that each hold one of the two elements, with the gradients that the step uses; by default those that
    clips of each by itself at 1 would leave."""
    each = [shard(at, list(gradients), factor) for at, factor in enumerate(factors)]
    return a_run(*each, backend="fsdp2", clip={"kind": kind, "threshold": 1.0})


def by_largest(factor):
    """A norm that is an entry of the gradients hides what a rank did."""
    [*before, used] = shard(1, [1.0, 0.5], factor)
    each = [shard(0, [1.0, 0.5], 0.25), [*before, [] if factor else [ALL_REDUCE], used]]
    return a_run(*each, backend="fsdp2", clip={"kind": "norm", "threshold": 1.0})


#: By law: runs that break only this law.
BREAKING = {
    "clip/after-sync": {
        "clipped apart": clipped_apart,
        "a copy of all gradients averaged after it": lambda: ranks(
            *([clip(gradients=own), average(of=None, elements=2)] for own in APART)
        ),
        "a large model shows its norms": lambda: ranks(
            *([clip(gradients=None, norm=norm), average()] for norm in (1.0, 2.0))
        ),
    },
    "clip/before-step": {
        "after the step": lambda: alone(step(), clip(), event("zero_grad")),
    },
    "clip/once-per-window": {
        "for each micro-batch": lambda: alone(clip(), micro_batch(gradients="some"), clip(), step(), **TWO),
        "before the last backward": lambda: alone(clip(), micro_batch(gradients="some"), step(), **TWO),
        "twice in a row": lambda: alone(clip(), clip(), step()),
        "before the average too": lambda: ranks(*([clip(gradients=own), average(), clip()] for own in APART)),
    },
    "clip/all-parameters": {
        "a generator used up": lambda: alone(event("clip", parameters=[], norm=0.0, gradients=None), step()),
        "a parameter left out": lambda: alone(clip(0), step()),
    },
    "clip/norm-of-all-shards": {
        "each by its own norm": lambda: shards(1 / 3, 1 / 4),
        "the first by its own norm": lambda: shards(1 / 3, None, gradients=(1.0, 0.5)),
        "the second by its own norm": lambda: shards(None, 1 / 4, gradients=(-0.5, -1.0)),
        "all by the largest of their norms": lambda: by_largest(0.25),
        "all by the largest, one of them hidden": lambda: by_largest(None),
    },
}

#: What breaks no law of the chapter.
ALLOWED = {
    "before a backward of other parameters": lambda: alone(clip(), micro_batch(gradients="none"), step(), **TWO),
    "averaged and clipped by group": lambda: ranks(*[[average(), clip(0), average(), clip(1)]] * 2),
    "a loss averaged for a log": lambda: ranks(*[[average(), clip(), average(of=None, elements=1, bytes=4)]] * 2),
    "weights broadcast": lambda: ranks(*[[average(), clip(), average(op="broadcast_", of="parameters")]] * 2),
    "gradients gathered for a log": lambda: ranks(*[[average(), clip(), average(op="allgather_")]] * 2),
    "before Horovod averages, which has its own law": lambda: ranks(
        *([clip(gradients=own), average(via="horovod")] for own in APART), backend="horovod"
    ),
    "each before the step of its optimizer": lambda: a_run(
        [
            [hold(0, 0), hold(1, 1), micro_batch(0), clip(0), step(gradients=[1.0, None])],
            [clip(1), step(optimizer=1, gradients=[None, 1.0])],
        ]
    ),
    "before a step that is skipped": lambda: alone(clip(), event("skip")),
    "the norm read after the step": lambda: alone(clip(), step(), clip(threshold="inf")),
    "after the step, and cut off": lambda: alone(step(), clip(), event("raised")),
    "steps for each micro-batch, for another law": lambda: alone(clip(), step(), micro_batch(), clip(), step(), **TWO),
    "each parameter by itself": lambda: alone(clip(0), clip(1), step()),
    "by value and by norm": lambda: alone(clip(kind="value", norm=None), clip(), step()),
    "the norm read first": lambda: alone(clip(threshold="inf"), clip(), step()),
    "a parameter without a gradient": lambda: alone(clip(0), step(gradients=[1.0, None])),
    "a parameter without an optimizer": lambda: alone(clip(0), step(), first=hold(0, 0)),
    "a large model": lambda: alone(clip(0), step(gradients=None), first=hold(0, 0)),
    "a frozen parameter": lambda: alone(clip(0), step(), first=event("optimizer", parameters=[0, 1], trainable=[0])),
    "one parameter by hand": lambda: alone(clip(0), event("gradient_change", parameters=[1]), step()),
    "shards by the norm of all": lambda: shards(0.2, 0.2, gradients=(0.6, 0.8)),
    "shards that are not clipped": lambda: shards(0.5, 0.5, gradients=(0.6, 0.9)),
    "shards with factors rounded apart": lambda: shards(0.2, 0.2 * (1 + 2**-9), gradients=(0.6, 0.8)),
    "shards of zeros, which show no factor": lambda: shards(0.2, None, gradients=(1.0, 0.0)),
    "shards with a factor unknown": lambda: shards(0.2, "nan", gradients=(0.6, 0.8)),
    "shards that overflow": lambda: shards(0.2, 0.3, gradients=("inf", 1.0)),
    "shards with one multiplied": lambda: shards(2.0, None),
    "shards that are multiplied apart, not clipped": lambda: shards(0.5, 0.25, gradients=(0.5, 1.0)),
    "shards clipped by value": lambda: shards(1 / 3, 1 / 4, kind="value"),
    "shards as they are": lambda: shards(None, None),
}

test_broken, test_allowed = tables(BREAKING, ALLOWED, "clip")


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("clip")


def test_windows_that_keep_the_laws_count():
    run = alone(clip(), step(), event("zero_grad"), micro_batch(1), clip(), step())
    assert broken(run) == set()
    assert [checked(run, f"clip/{name}") for name in ("before-step", "once-per-window", "all-parameters")] == [2] * 3
    assert checked(run, "clip/after-sync") == 0
    assert checked(ranks([average(), clip()], [average(), clip()]), "clip/after-sync") == 2


def test_nothing_to_check_without_a_clip_or_the_other_rank():
    assert set(all_checked("clip", alone(step())).values()) == {0}
    assert checked(ranks([clip(gradients=APART[0]), average()], [event("raised")]), "clip/after-sync") == 0


def test_after_the_step_of_its_optimizer():
    events = [hold(0, 0), hold(1, 1), micro_batch(0), step(gradients=[1.0, None]), clip(0)]
    assert broken(a_run([events, step(optimizer=1, gradients=[None, 1.0])])) >= {"clip/before-step"}


@pytest.mark.parametrize(
    ("law", "name", "told"),
    [
        ("clip/after-sync", "clipped apart", "the norm 2 on rank 0 and 1 on rank 1"),
        ("clip/once-per-window", "for each micro-batch", "clipped again"),
        ("clip/all-parameters", "a generator used up", "got no parameters"),
        ("clip/all-parameters", "a parameter left out", "left out bias"),
    ],
)
def test_what_is_told(law, name, told):
    broken = found(BREAKING[law][name](), law).broken
    assert told in f"{broken.observed} {broken.effect}"


def test_both_ranks_that_clip_apart_are_named():
    assert found(clipped_apart(), "clip/after-sync").ranks == (0, 1)


def test_shards_clipped_by_torch():
    def clipped(held):
        seen = event("clip", norm=5.0, gradients=[3.0, 4.0])
        return [forward(0), event("shards", held=[held]), backward(), seen, step()]

    run = a_run(clipped(0), clipped(1), backend="fsdp2", clip={"kind": "norm", "threshold": 1.0})
    assert (broken(run), checked(run, "clip/norm-of-all-shards")) == (set(), 1)


def test_copies_clip_as_the_other_laws_say():
    def whole(factor):
        return [forward(0), backward(), event("gradient_change", parameters=[0], factor=factor), step()]

    run = a_run(whole(0.5), whole(0.25), backend="ddp", clip={"kind": "norm", "threshold": 1.0})
    assert checked(run, "clip/norm-of-all-shards") == 0
