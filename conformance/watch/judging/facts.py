"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # coverage, discarded
    "coverage.unheld": (Property.COVERAGE, "part"),
    "coverage.no-gradient": (Property.COVERAGE, "part"),
    "coverage.no-more-gradient": (Property.COVERAGE, "part"),
    "coverage.taken-away": (Property.COVERAGE, "part"),
    "coverage.zero": (Property.COVERAGE, "part"),
    "coverage.no-more-steps": (Property.COVERAGE, "part"),
    "clearing.discarded": (Property.CLEARING, "discarded"),
}
