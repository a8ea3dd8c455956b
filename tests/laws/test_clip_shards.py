"""The law on clipping shards: traces of two ranks, of which each holds one of the two elements."""

from __future__ import annotations

import pytest

from .building import a_run, backward, event, forward, step
from .findings import broken_of, checked

LAW = "clip/norm-of-all-shards"


def rank(held, gradients, factor, gradient_before_clip=None):
    change = [] if factor is None else [event("gradient_change", parameters=[held], factor=factor)]
    return [forward(0), event("shards", held=[held]), backward(), change, step(gradients=gradients)]


def two(first, second, clip="norm", gradients=(3.0, 4.0)):
    kind = {"kind": clip, "threshold": 1.0}
    ranks = [rank(at, list(gradients), factor) for at, factor in enumerate((first, second))]
    return a_run(*ranks, backend="fsdp2", clip=kind)


@pytest.mark.parametrize("factors", [(1 / 3, 1 / 4), (1 / 3, None), (None, 1 / 4)])
def test_each_clips_by_its_own_norm(factors):
    assert broken_of({"clip"}, two(*factors)) == {LAW}


@pytest.mark.parametrize(
    "run",
    [
        two(0.2, 0.2),
        two(0.2, 0.2 * (1 + 2**-9)),  # rounded apart
        two(0.2, None, gradients=(3.0, 0.0)),  # zeros show no factor
        two(0.2, "nan"),
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
