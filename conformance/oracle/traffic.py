"""The bytes that each rank sends in an optimizer step, by the formulas of the algorithms that average gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from conformance.adapter.backends import BACKENDS, Exchange, exchange_of

#: The data that each of N ranks sends in a step. Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
#: for clusters of workstations", Journal of Parallel and Distributed Computing 69 (2009), for the ring; the others are
#: counted from their messages.
FORMULAS: dict[Exchange | None, str] = {
    "all-reduce": "the gradient, passed to all-reduce",
    "owners": "the gradient, passed to all-reduce, and the weights, broadcast by the ranks that step them",
    "shards": "a rank's shard of the weights, passed to all-gather in each micro-batch; the gradient, passed to "
    "reduce-scatter; and its shard again, passed to all-reduce, if shards have copies. Shards are padded to one length",
    "zero": "the gradient, passed to all-reduce, per step in stages 0 and 1, per micro-batch in stage 2, or to "
    "reduce-scatter per micro-batch in stage 3; and from stage 1 on, a rank's shard of the weights, passed to "
    "all-gather. Shards are padded to one length. Excludes the first step in stage 3, which records the module order",
    "parameter-server": "N − 1 gradients to rank 0, which is also a worker, and N − 1 copies of the weights back",
    "ring": "2 (N − 1) / N of the gradient per rank",
    "ring-gather": "2x the gradient per rank, 1x at either end",
}


@dataclass(frozen=True)
class Expected:
    """Bytes of gradients and weights in one optimizer step of one rank.

    sent, received: in messages to and from other ranks. reduced: passed to collectives, which send their own messages.
    """

    sent: int
    received: int
    reduced: Fraction | int


@dataclass(frozen=True)
class Split:
    """The sharding of parameters over the ranks.

    share: the most elements of a rank; all shards are padded to it. copies: the number of ranks with the same shard.
    gathers: the number of all-gathers of all elements in a step. width: the bytes of a gathered element.
    """

    share: int
    copies: int
    gathers: Fraction
    width: int


@dataclass(frozen=True)
class Partitioned:
    """ZeRO's sharding of a model: see `conformance.trace.events.Zero`. reductions: averages per step."""

    stage: int
    share: int
    gradient_width: int
    weight_width: int
    reductions: Fraction


def expected(
    backend: str,
    ranks: int,
    elements: int,
    width: int,
    split: Split | Partitioned | None = None,
    stepped: Fraction = Fraction(1),
) -> tuple[Expected, ...] | None:
    """The traffic of each rank for a gradient of ``elements`` numbers of ``width`` bytes; None without a formula.
    ``stepped``: the fraction of windows whose step is not skipped. Weights are as large as their gradients.
    """
    whole = elements * width
    exchange = exchange_of(backend)
    if exchange == "all-reduce":
        return (Expected(0, 0, whole),) * ranks
    if exchange == "owners":
        return (Expected(0, 0, whole + stepped * whole),) * ranks
    if exchange == "shards":
        if not isinstance(split, Split):
            return None
        reduced = split.share * (ranks // split.copies + (split.copies > 1)) * width
        return (Expected(0, 0, reduced + split.share * split.gathers * split.width),) * ranks
    if exchange == "zero":
        if not isinstance(split, Partitioned):
            return None
        averaged = (ranks * split.share if split.stage == 3 else elements) * split.gradient_width
        return (Expected(0, 0, split.reductions * averaged + stepped * split.share * split.weight_width),) * ranks
    if exchange == "parameter-server":
        return (Expected((ranks - 1) * whole, (ranks - 1) * whole, 0), *[Expected(whole, whole, 0)] * (ranks - 1))
    if exchange == "ring":
        sent = [width * count for count in _ring(ranks, elements)]
    elif exchange == "ring-gather":
        sent = [whole if rank in (0, ranks - 1) else 2 * whole for rank in range(ranks)]
    else:
        return None
    # A rank receives the bytes that the previous rank sends.
    return tuple(Expected(own, sent[rank - 1], 0) for rank, own in enumerate(sent))


def state(backend: str, elements: int, optimizer: Mapping[str, Any], width: int) -> int | None:
    """The bytes of an optimizer's state for ``elements`` numbers of ``width`` bytes; each rank keeps an N-th of them.

    SGD keeps its momentum, if any, and AdamW two moments. None for a backend whose ranks keep the whole state.
    """
    if backend not in BACKENDS or BACKENDS[backend].paths != "sharded":
        return None
    return elements * width * (2 if "betas" in optimizer else int(bool(optimizer.get("momentum"))))


def ring_all_reduce(ranks: int, payload: Fraction) -> Fraction:
    """The mean bytes that a rank sends in an all-reduce of ``payload`` bytes around a ring: 2 (N - 1) / N of them.

    No all-reduce needs less (Patarasuk and Yuan, 2009, section 3).
    """
    return 2 * Fraction(ranks - 1, ranks) * payload


def ring_collective(op: str, ranks: int, payload: int) -> Fraction:
    """The mean bytes that a rank sends around a ring in a collective to which it passes ``payload`` bytes.

    An all-reduce is a reduce-scatter of the payload and an all-gather of the parts.
    """
    if "allgather" in op:
        return Fraction((ranks - 1) * payload)
    return ring_all_reduce(ranks, Fraction(payload)) / (2 if "scatter" in op or "broadcast" in op else 1)


def _ring(ranks: int, elements: int) -> list[int]:
    """The elements that each rank sends in reduce-scatter and all-gather. The first segments may be one longer.

    A rank sends all segments except the one that it sums, and then all except the one that arrives last.
    """
    sizes = [elements // ranks + (segment < elements % ranks) for segment in range(ranks)]
    return [2 * elements - sizes[rank] - sizes[(rank + 1) % ranks] for rank in range(ranks)]
