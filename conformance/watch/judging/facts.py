"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # Data.
    "data.same-samples": (Property.DATA, "same"),
    "data.same-micro-batches": (Property.DATA, "same"),
    "data.same-order": (Property.DATA, "same"),
    "data.cut-twice": (Property.DATA, "same"),
    "data.unread-parts": (Property.DATA, "same"),
}
