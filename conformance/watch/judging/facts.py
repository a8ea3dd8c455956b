"""The facts that a watch states without judging them: the property that each is about, and the value that it shows.

`--expect` with that value settles a fact. One without a value cannot be settled: nothing is known of the property.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.properties import Property

FACTS: Mapping[str, tuple[Property, str | None]] = {
    # How the gradients of the ranks enter a step.
    "ranks.sum": (Property.RANKS, "sum"),
    "ranks.own": (Property.RANKS, "own"),
    "ranks.some": (Property.RANKS, "own"),
    "ranks.factor": (Property.RANKS, "weighted"),
    "ranks.weighted": (Property.RANKS, "weighted"),
    "ranks.left-out": (Property.RANKS, "weighted"),
    "ranks.run-out": (Property.RANKS, "weighted"),
    "ranks.groups": (Property.RANKS, "weighted"),
    "ranks.some-parameters": (Property.RANKS, "weighted"),
    "ranks.varies": (Property.RANKS, "weighted"),
    "ranks.hook": (Property.RANKS, None),
    "ranks.layout": (Property.RANKS, None),
    "ranks.missing": (Property.RANKS, None),
    "ranks.turns": (Property.RANKS, None),
    "ranks.no-group": (Property.RANKS, None),
    "ranks.order": (Property.RANKS, None),
    "ranks.sample": (Property.RANKS, None),
    # What became of gradients between the backward pass and the step.
    "changed": (Property.RANKS, None),
    "changed.alike": (Property.MICRO_BATCHES, None),
    "changed.few": (Property.MICRO_BATCHES, None),
    "changed.long": (Property.MICRO_BATCHES, None),
    "changed.coarse": (Property.RANKS, None),
    "changed.by-hand": (Property.RANKS, None),
    "changed.captured": (Property.RANKS, None),
    "changed.by-element": (Property.RANKS, None),
    "changed.not-finite": (Property.RANKS, None),
    "changed.otherwise": (Property.RANKS, None),
    "changed.weights": (Property.RANKS, None),
    "micro.weighted": (Property.MICRO_BATCHES, "weighted"),
    "clearing.kept": (Property.CLEARING, "kept"),
    "clearing.again": (Property.CLEARING, "kept"),
    "clearing.shared": (Property.CLEARING, "kept"),
    "clearing.restored": (Property.CLEARING, "kept"),
    "clearing.several-weights": (Property.CLEARING, "kept"),
    "clearing.late": (Property.CLEARING, "kept"),
    "clearing.zeroed": (Property.CLEARING, "discarded"),
    "loss-scale.own-optimizer": (Property.LOSS_SCALE, "own"),
    "clipping.hooks": (Property.CLIPPING, "early"),
    "coverage.some-steps": (Property.COVERAGE, "part"),
    "coverage.unreached": (Property.COVERAGE, "part"),
    # Whether the ranks agree.
    "agreement.rounding": (Property.AGREEMENT, "apart"),
    "agreement.parameters": (Property.AGREEMENT, "apart"),
    "agreement.buffers": (Property.AGREEMENT, "apart"),
    "agreement.frozen": (Property.AGREEMENT, "apart"),
    "agreement.between": (Property.AGREEMENT, "apart"),
    # Data.
    "data.same-samples": (Property.DATA, "same"),
    "data.same-micro-batches": (Property.DATA, "same"),
    "data.same-order": (Property.DATA, "same"),
    "data.cut-twice": (Property.DATA, "same"),
    "data.unread-parts": (Property.DATA, "same"),
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
    # Denominators.
    "ranks.divided-again": (Property.RANKS, "weighted"),
    "micro-batches.sum": (Property.MICRO_BATCHES, "sum"),
    "micro-batches.divided": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.uneven": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.means": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.total": (Property.MICRO_BATCHES, "weighted"),
    # coverage, discarded
    "coverage.unheld": (Property.COVERAGE, "part"),
    "coverage.no-gradient": (Property.COVERAGE, "part"),
    "coverage.no-more-gradient": (Property.COVERAGE, "part"),
    "coverage.taken-away": (Property.COVERAGE, "part"),
    "coverage.zero": (Property.COVERAGE, "part"),
    "coverage.no-more-steps": (Property.COVERAGE, "part"),
    "clearing.discarded": (Property.CLEARING, "discarded"),
}
