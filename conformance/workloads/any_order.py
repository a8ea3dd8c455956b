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

from conformance.workloads.model import Linear
from conformance.workloads.plan import Sampler
from conformance.workloads.recipes import HALF
from conformance.workloads.workload import SGD, Sample, Workload

#: The global batches that are tried in turn.
BATCH_SIZES = (8, 12, 16)
_MODEL = Linear(6, bias=True)
_WINDOWS, _EPOCHS = 3, 2
_TARGETS = (-4, -3, -2, -1, 1, 2, 3, 4)
_STARTS = (-2, -1, 1, 2)

#: The workloads, each with its summary, its sampler, and how many samples there are beyond whole windows.
OWN_ORDER = "own-order"
ANY_ORDER: dict[str, tuple[str, Sampler, int]] = {
    "sampler-pads": ("Two epochs whose samples do not divide over the ranks: the sampler repeats one.", "pad", -1),
    "sampler-drops": ("Two epochs whose samples do not divide over the ranks: the sampler leaves one out.", "drop", 1),
    OWN_ORDER: ("Two epochs, in each of which the order of the samples is the trainer's own.", "pad", 0),
}


@cache
def any_order(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    summary, sampler, more = ANY_ORDER[name]
    draw = Random(f"{name} {batch_size}")
    rows = list(product((Fraction(1), Fraction(-1)), repeat=_MODEL.features))
    draw.shuffle(rows)
    samples = tuple(Sample(row, Fraction(draw.choice(_TARGETS))) for row in rows[: _WINDOWS * batch_size + more])
    return Workload(
        name=name,
        batches=tuple(samples[start : start + batch_size] for start in range(0, len(samples), batch_size)),
        optimizer=SGD(HALF, momentum=HALF),
        model=_MODEL,
        start=tuple(Fraction(draw.choice(_STARTS)) for _ in range(_MODEL.size)),
        epochs=_EPOCHS,
        shuffle=True,
        sampler=sampler,
        own_order=name == OWN_ORDER,
        summary=summary,
    )
