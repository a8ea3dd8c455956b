"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # Loss scale and schedules
    "clipping.scaled-norm": (Property.CLIPPING, "early"),
    "clipping.scaled-value": (Property.CLIPPING, "early"),
    "schedule.never-steps": (Property.SCHEDULE, "any"),
    "schedule.steps-often": (Property.SCHEDULE, "any"),
    "schedule.past-its-end": (Property.SCHEDULE, "any"),
    "schedule.before-first-step": (Property.SCHEDULE, "any"),
    "schedule.without-steps": (Property.SCHEDULE, "any"),
    "schedule.zero-rate": (Property.SCHEDULE, "any"),
    "schedule.low-rate": (Property.SCHEDULE, "any"),
}
