"""What a watch reports: nine properties, each with the values that a script can show and a user can expect."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Property(str, Enum):
    """The properties, in the order in which reports list them."""

    RANKS = "ranks"
    MICRO_BATCHES = "micro-batches"
    CLEARING = "clearing"
    LOSS_SCALE = "loss-scale"
    CLIPPING = "clipping"
    AGREEMENT = "agreement"
    DATA = "data"
    SCHEDULE = "schedule"
    COVERAGE = "coverage"


CORE = (Property.RANKS, Property.MICRO_BATCHES, Property.CLEARING)
"""A script conforms if these are proven in every step that was judged."""

VALUES: Mapping[Property, Mapping[str, str]] = {
    Property.RANKS: {
        "mean": "each step uses the mean of the gradients of all ranks",
        "sum": "each step uses the sum of the gradients of all ranks",
        "own": "each rank steps on its own gradients",
        "weighted": "ranks count with different weights, or some are left out",
    },
    Property.MICRO_BATCHES: {
        "mean": "each micro-batch counts once, divided by how many its window has or by the window's targets",
        "sum": "each micro-batch counts once, and their losses are added up",
        "weighted": "micro-batches count with different weights, or some are left out",
    },
    Property.CLEARING: {
        "each-step": "a step uses the gradients of its own window, all of them, and no others",
        "kept": "a step may also use gradients of earlier windows or of other losses",
        "discarded": "the script may clear gradients that no step has used",
    },
    Property.LOSS_SCALE: {
        "once": "each loss is scaled once and its gradients are unscaled once, by the same number",
        "own": "the script scales losses and gradients itself",
    },
    Property.CLIPPING: {
        "whole": "clipping comes after averaging and unscaling, once, over all parameters",
        "parts": "parts of the parameters are clipped apart, or not at all",
        "early": "clipping may come before averaging, unscaling or the last micro-batch",
    },
    Property.AGREEMENT: {
        "equal": "ranks that hold the same parameter have equal weights, rates, steps and skips",
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
        "all": "an optimizer steps every parameter that gets gradients, and each that it holds gets some",
        "part": "some parameters may get gradients and no steps, or be held and get no gradients",
    },
}
"""The first value of each property is expected unless the user states another one."""


def usual(of: Property) -> str:
    """The value that is expected unless stated otherwise."""
    return next(iter(VALUES[of]))
