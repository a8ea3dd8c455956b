"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # Order of calls in a window, and clipping.
    "clearing.other-passes": (Property.CLEARING, "kept"),
    "clipping.aside": (Property.CLIPPING, "parts"),
    "clipping.before-change": (Property.CLIPPING, "early"),
    "clipping.before-last-pass": (Property.CLIPPING, "early"),
    "clipping.by-value": (Property.CLIPPING, "parts"),
    "clipping.nothing": (Property.CLIPPING, "parts"),
    "clipping.parts": (Property.CLIPPING, "parts"),
    "loss-scale.not-finite": (Property.LOSS_SCALE, None),
    "micro-batches.same-gradient": (Property.MICRO_BATCHES, "weighted"),
}
