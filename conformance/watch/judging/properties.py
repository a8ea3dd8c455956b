"""The properties of a watch, with the values that a script can show and a user can expect; and the facts that the
watch leaves open.

`--expect` with its value settles a fact. A fact without a value cannot be settled, because it shows no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Property(str, Enum):
    """The properties, in the order in which reports list them."""

    RANKS = "ranks"
    MICRO_BATCHES = "micro-batches"
    DENOMINATOR = "denominator"
    CLEARING = "clearing"
    LOSS_SCALE = "loss-scale"
    CLIPPING = "clipping"
    AGREEMENT = "agreement"
    DATA = "data"
    SCHEDULE = "schedule"
    COVERAGE = "coverage"


CORE = (Property.RANKS, Property.MICRO_BATCHES, Property.CLEARING)
"""Those of each step: a script conforms only if these are proven in every judged step. Others count what they saw."""

VALUES: Mapping[Property, Mapping[str, str]] = {
    Property.RANKS: {
        "mean": "each step uses the mean of the gradients of all ranks",
        "sum": "each step uses the sum of the gradients of all ranks",
        "own": "each rank steps on its own gradients",
        "weighted": "ranks count with different weights, or some are left out",
    },
    Property.MICRO_BATCHES: {
        "mean": "each micro-batch counts once, divided by the window's number of micro-batches or targets",
        "sum": "each micro-batch counts once, and the losses are summed",
        "weighted": "micro-batches count with different weights, or some are left out",
    },
    Property.DENOMINATOR: {
        "targets": "each target of a step has the same weight, on all ranks and in all micro-batches",
        "means": "means of ranks or micro-batches count the same, whatever their number of targets",
        "constant": "sums are divided by a constant, whatever their number of targets",
    },
    Property.CLEARING: {
        "each-step": "a step uses all gradients of its own window and no others",
        "kept": "a step may also use gradients of earlier windows or of other losses",
        "discarded": "the script may clear gradients that no step has used",
    },
    Property.LOSS_SCALE: {
        "once": "each loss is scaled once and its gradients are unscaled once, by the same number",
        "own": "the script scales losses and gradients itself",
    },
    Property.CLIPPING: {
        "whole": "clipping comes after averaging and unscaling, once, over all parameters",
        "parts": "parts of the parameters are clipped separately, or not at all",
        "early": "clipping may come before averaging, unscaling or the last micro-batch",
    },
    Property.AGREEMENT: {
        "equal": "ranks with the same parameter have equal weights, rates, steps and skips",
        "apart": "weights, rates or steps of the ranks may differ",
    },
    Property.DATA: {
        "other": "each rank and each epoch sees other samples or another order",
        "same": "ranks may see the same samples, or epochs the same order",
    },
    Property.SCHEDULE: {
        "after-step": "a schedule steps after its optimizer, once a step or once an epoch",
        "any": "a schedule may step at other times, or not at all",
    },
    Property.COVERAGE: {
        "all": "every parameter with gradients is in an optimizer, and every parameter of an optimizer gets gradients",
        "part": "some parameters may get gradients without steps, or be in an optimizer without gradients or state",
    },
}
"""The first value of each property is the default expectation."""


def usual(of: Property) -> str:
    """The value that is expected by default."""
    return next(iter(VALUES[of]))


FACTS: Mapping[str, tuple[Property, str | None]] = {
    # How the gradients of the ranks enter a step.
    "ranks.sum": (Property.RANKS, "sum"),
    "ranks.own": (Property.RANKS, "own"),
    "ranks.own-some": (Property.RANKS, "own"),
    "ranks.parts": (Property.RANKS, "weighted"),
    "ranks.parts-summed": (Property.RANKS, "weighted"),
    "ranks.one-loss-averaged": (Property.RANKS, "weighted"),
    "ranks.some": (Property.RANKS, "own"),
    "ranks.factor": (Property.RANKS, "weighted"),
    "ranks.weighted": (Property.RANKS, "weighted"),
    "ranks.left-out": (Property.RANKS, "weighted"),
    "ranks.run-out": (Property.RANKS, "weighted"),
    "ranks.groups": (Property.RANKS, "weighted"),
    "ranks.some-parameters": (Property.RANKS, "weighted"),
    "ranks.by-parameter": (Property.RANKS, "weighted"),
    "ranks.varies": (Property.RANKS, "weighted"),
    "ranks.hook": (Property.RANKS, None),
    "ranks.layout": (Property.RANKS, None),
    "ranks.missing": (Property.RANKS, None),
    "ranks.holders": (Property.RANKS, None),
    "ranks.turns": (Property.RANKS, None),
    "ranks.no-group": (Property.RANKS, None),
    "ranks.order": (Property.RANKS, None),
    "ranks.sample": (Property.RANKS, None),
    # Changes of gradients between the backward pass and the step.
    "changed": (Property.RANKS, None),
    "changed.some": (Property.RANKS, None),
    "changed.alike": (Property.MICRO_BATCHES, None),
    "changed.few": (Property.MICRO_BATCHES, None),
    "changed.long": (Property.MICRO_BATCHES, None),
    "changed.coarse": (Property.RANKS, None),
    "changed.by-hand": (Property.RANKS, None),
    "changed.before": (Property.RANKS, None),
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
    "loss-scale.left": (Property.LOSS_SCALE, "own"),
    "loss-scale.not-updated": (Property.LOSS_SCALE, "own"),
    "loss-scale.restarts": (Property.LOSS_SCALE, "own"),
    "clipping.hooks": (Property.CLIPPING, "early"),
    "coverage.some-steps": (Property.COVERAGE, "part"),
    "coverage.unreached": (Property.COVERAGE, "part"),
    # Whether the ranks agree.
    "agreement.rounding": (Property.AGREEMENT, "apart"),
    "agreement.weights": (Property.AGREEMENT, "apart"),
    "agreement.parameters": (Property.AGREEMENT, "apart"),
    "agreement.buffers": (Property.AGREEMENT, "apart"),
    "agreement.frozen": (Property.AGREEMENT, "apart"),
    "agreement.between": (Property.AGREEMENT, "apart"),
    # Data.
    "data.same-samples": (Property.DATA, "same"),
    "data.same-micro-batches": (Property.DATA, "same"),
    "data.same-order": (Property.DATA, "same"),
    "data.same-shuffle": (Property.DATA, "same"),
    "data.cut-twice": (Property.DATA, "same"),
    # The order of calls in a window, and clipping.
    "clearing.other-passes": (Property.CLEARING, "kept"),
    "clipping.aside": (Property.CLIPPING, "parts"),
    "clipping.before-change": (Property.CLIPPING, "early"),
    "clipping.unheld": (Property.CLIPPING, "parts"),
    "clipping.before-last-pass": (Property.CLIPPING, "early"),
    "clipping.by-value": (Property.CLIPPING, "parts"),
    "clipping.nothing": (Property.CLIPPING, "parts"),
    "clipping.parts": (Property.CLIPPING, "parts"),
    "loss-scale.not-finite": (Property.LOSS_SCALE, None),
    # Loss scale and schedules.
    "clipping.scaled-norm": (Property.CLIPPING, "early"),
    "clipping.scaled-value": (Property.CLIPPING, "early"),
    "schedule.never-steps": (Property.SCHEDULE, "any"),
    "schedule.steps-often": (Property.SCHEDULE, "any"),
    "schedule.past-its-end": (Property.SCHEDULE, "any"),
    "schedule.before-first-step": (Property.SCHEDULE, "any"),
    "schedule.several": (Property.SCHEDULE, "any"),
    "schedule.without-steps": (Property.SCHEDULE, "any"),
    "schedule.zero-rate": (Property.SCHEDULE, "any"),
    "schedule.low-rate": (Property.SCHEDULE, "any"),
    # Denominators.
    "micro-batches.sum": (Property.MICRO_BATCHES, "sum"),
    "micro-batches.divided": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.divided-by-ranks": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.divided-twice": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.times-ranks": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.uneven": (Property.MICRO_BATCHES, "weighted"),
    "denominator.apart": (Property.DENOMINATOR, "means"),
    "denominator.constant": (Property.DENOMINATOR, "constant"),
    "micro-batches.total": (Property.MICRO_BATCHES, "weighted"),
    "micro-batches.totals": (Property.MICRO_BATCHES, "weighted"),
    # Coverage and discarded gradients.
    "coverage.unheld": (Property.COVERAGE, "part"),
    "coverage.outdated": (Property.COVERAGE, "part"),
    "coverage.copies": (Property.COVERAGE, "part"),
    "coverage.no-gradient": (Property.COVERAGE, "part"),
    "coverage.zero-gradient": (Property.COVERAGE, "part"),
    "coverage.without-state": (Property.COVERAGE, "part"),
    "coverage.of-no-step": (Property.COVERAGE, "part"),
    "coverage.left-out": (Property.COVERAGE, "part"),
    "coverage.no-more-steps": (Property.COVERAGE, "part"),
    "clearing.discarded": (Property.CLEARING, "discarded"),
    "clearing.part": (Property.CLEARING, "discarded"),
}

_OF_A_SUM = frozenset({"watch/means-averaged", "watch/averaged-once"})
_OF_OLD_PARAMETERS = frozenset({"held.replaced"})

EXPLAINED: Mapping[str, frozenset[str]] = {
    "ranks.sum": _OF_A_SUM,
    "micro-batches.total": _OF_A_SUM,
    "micro-batches.totals": _OF_A_SUM,
    "denominator.constant": _OF_A_SUM,
    "clearing.discarded": frozenset({"watch/used"}),
    "coverage.no-gradient": frozenset({"watch/from-the-model"}),
    "clipping.before-change": frozenset({"ranks-by-factor"}),
    "clipping.nothing": frozenset({"clip.used-up"}),
    "coverage.of-no-step": _OF_OLD_PARAMETERS,
    "coverage.outdated": _OF_OLD_PARAMETERS,
    "coverage.unreached": _OF_OLD_PARAMETERS | {"watch/from-the-model"},
}
"""Facts that are consequences, by code: the laws and the codes of problems that explain them."""
