"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # Denominators.
    "ranks.means-added": (Property.RANKS, "sum"),
    "ranks.divided-again": (Property.RANKS, "weighted"),
    "micro-batches.sum": (Property.MICRO_BATCHES, "sum"),
    "micro-batches.divided": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.uneven": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.means": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.total": (Property.MICRO_BATCHES, "weighted"),
}
