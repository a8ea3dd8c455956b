"""The standard workloads whose samples may come in any order, as of a sampler that repeats samples or leaves some out.

Features are ones and minus ones, targets whole numbers, and most global batches have a power of two of them. So a step
adds a few bits to the weights, whatever samples it has, and also where it has one twice; the certificate proves each
order that is read. With 16 bits there is room for none. All rows differ, so a trace shows which samples were read.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import NamedTuple

from conformance.workloads.model import Linear
from conformance.workloads.plan import Sampler
from conformance.workloads.recipes import HALF
from conformance.workloads.workload import SGD, Sample, Workload

_MODEL = Linear(6, bias=True)
_TARGETS = (-4, -3, -2, -1, 1, 2, 3, 4)
_STARTS = (-2, -1, 1, 2)

OWN_ORDER = "own-order"


class _Stream(NamedTuple):
    """``more``: how many samples an epoch has beyond whole windows. ``sizes``: the global batches that are tried in
    turn."""

    summary: str
    sampler: Sampler
    more: int
    windows: int = 3
    epochs: int = 2
    sizes: tuple[int, ...] = (8, 12, 16)


_STREAMS = {
    # What two epochs repeat is a micro-batch of one sample on each of two ranks: by the third, a position that is
    # computed from the samples of the data set is another one.
    "sampler-pads": _Stream(
        "Three epochs whose samples do not divide over the ranks: the sampler repeats one.",
        "pad",
        -1,
        2,
        3,
        (4, 12, 16),
    ),
    "sampler-drops": _Stream(
        "Two epochs whose samples do not divide over the ranks: the sampler leaves one out.", "drop", 1
    ),
    OWN_ORDER: _Stream("Two epochs, in each of which the order of the samples is the trainer's own.", "pad", 0),
}
#: The workloads, each with the global batches that are tried in turn.
BATCH_SIZES: dict[str, tuple[int, ...]] = {name: stream.sizes for name, stream in _STREAMS.items()}


@cache
def any_order(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    stream = _STREAMS[name]
    draw = Random(f"{name} {batch_size}")
    rows = list(product((Fraction(1), Fraction(-1)), repeat=_MODEL.features))
    draw.shuffle(rows)
    samples = tuple(
        Sample(row, Fraction(draw.choice(_TARGETS))) for row in rows[: stream.windows * batch_size + stream.more]
    )
    return Workload(
        name=name,
        batches=tuple(samples[start : start + batch_size] for start in range(0, len(samples), batch_size)),
        optimizer=SGD(HALF, momentum=HALF),
        model=_MODEL,
        start=tuple(Fraction(draw.choice(_STARTS)) for _ in range(_MODEL.size)),
        epochs=stream.epochs,
        shuffle=True,
        sampler=stream.sampler,
        own_order=name == OWN_ORDER,
        summary=stream.summary,
    )
