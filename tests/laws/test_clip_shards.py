"""The law on clipping shards: traces of two ranks, of which each holds one of the two elements."""

from __future__ import annotations

import pytest

from .building import a_run, backward, event, forward, step
from .building_ddp import ALL_REDUCE
from .findings import broken_of, checked

LAW = "clip/norm-of-all-shards"


def rank(held, gradients, factor):
    change = [] if factor is None else [event("gradient_change", parameters=[held], factor=factor)]
    return [forward(0), event("shards", held=[held]), backward(), change, step(gradients=gradients)]


def two(*factors, gradients=(1.0, 1.0), clip="norm"):
    """With the gradients that the step uses; by default those that clips of each by itself at 1 would leave."""
    ranks = [rank(at, list(gradients), factor) for at, factor in enumerate(factors)]
    return a_run(*ranks, backend="fsdp2", clip={"kind": clip, "threshold": 1.0})


@pytest.mark.parametrize(
    "run",
    [two(1 / 3, 1 / 4), two(1 / 3, None, gradients=(1.0, 0.5)), two(None, 1 / 4, gradients=(-0.5, -1.0))],
)
def test_each_clips_by_its_own_norm(run):
    assert broken_of({"clip"}, run) == {LAW}


@pytest.mark.parametrize("factor", [0.25, None])
def test_all_clip_by_the_largest_of_their_norms(factor):
    """Also where a norm that is an entry of the gradients hides what a rank did."""
    [*before, used] = rank(1, [1.0, 0.5], factor)
    exchanged = [] if factor else [ALL_REDUCE]
    ranks = [rank(0, [1.0, 0.5], 0.25), [*before, exchanged, used]]
    assert broken_of({"clip"}, a_run(*ranks, backend="fsdp2", clip={"kind": "norm", "threshold": 1.0})) == {LAW}


@pytest.mark.parametrize(
    "run",
    [
        two(0.2, 0.2, gradients=(0.6, 0.8)),
        two(0.5, 0.5, gradients=(0.6, 0.9)),  # no clip
        two(0.2, 0.2 * (1 + 2**-9), gradients=(0.6, 0.8)),  # rounded apart
        two(0.2, None, gradients=(1.0, 0.0)),  # zeros show no factor
        two(0.2, "nan", gradients=(0.6, 0.8)),
        two(0.2, 0.3, gradients=("inf", 1.0)),
        two(2.0, None),  # no clip
        two(0.5, 0.25, gradients=(0.5, 1.0)),
        two(1 / 3, 1 / 4, clip="value"),
        two(None, None),
    ],
)
def test_kept_or_unknown(run):
    assert broken_of({"clip"}, run) == set()


def test_clipped_by_torch():
    def clipped(held):
        seen = event("clip", norm=5.0, gradients=[3.0, 4.0])
        return [forward(0), event("shards", held=[held]), backward(), seen, step()]

    run = a_run(clipped(0), clipped(1), backend="fsdp2", clip={"kind": "norm", "threshold": 1.0})
    assert (broken_of({"clip"}, run), checked(run, LAW)) == (set(), 1)


def test_copies_clip_as_the_other_laws_say():
    def whole(factor):
        return [forward(0), backward(), event("gradient_change", parameters=[0], factor=factor), step()]

    run = a_run(whole(0.5), whole(0.25), backend="ddp", clip={"kind": "norm", "threshold": 1.0})
    assert checked(run, LAW) == 0
