"""The sentences of a watch: one for each code of `facts.py`, of `Finding.says` and of `Finding.effect`.

`{loss:g}` formats a number as Python does, `{passes:pass}` counts: "1 pass", "3 passes". A list is joined by commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from conformance.watch.judging.findings import Said

_NUMBER = re.compile(r"[-+.,\d]*[a-zA-Z%]?")
_MOST_NAMED = 3


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (list, tuple)):
            named = [self.format_field(one, format_spec) for one in value[:_MOST_NAMED]]
            return ", ".join([*named, *(["..."] if len(value) > _MOST_NAMED else [])])
        if not format_spec:
            return f"{value:.3g}" if isinstance(value, float) else str(value)
        if _NUMBER.fullmatch(format_spec):
            return format(value, format_spec)
        ending = "es" if format_spec.endswith(("ch", "sh", "s")) else "s"
        return f"{value} {format_spec}{'' if value == 1 else ending}"


def sentence(says: Said | str) -> str:
    """The sentence of a code, with its values. Raises KeyError for an unknown code or a value that is missing."""
    return says if isinstance(says, str) else _Words().vformat(WORDS[says.code], (), says.values)


WORDS: Mapping[str, str] = {
    # Loss scale and schedules
    "clipping.scaled-norm": "Clipping compares the norm of gradients times {scale:g} with {limit:g}",
    "clipping.scaled-value": "Clipping compares elements of gradients times {scale:g} with {limit:g}",
    "clip.scaled.effect": "What is compared with the limit is {scale:g}x of the correct value",
    "clip.left.effect": "Gradients after clipping are {left:.3g}x of the correct ones",
    "scale.largest": "The largest element before unscaling is {value:.4g} at the loss scales {scales:g}",
    "scale.largest.effect": "A limit of {value:.4g} applies to gradients times {scale:g}",
    "scale.norm": "The gradient norm before unscaling is {value:.4g} at the loss scales {scales:g}",
    "scale.norm.effect": "A limit of {value:.4g} applies to gradients times {scale:g}",
    "scale.limit": "Clipping compares gradients with {value:g} at the loss scales {scales:g}",
    "scale.limit.effect": "The limit of {value:g} applies to gradients times {scale:g}",
    "scale.element-limit": "Clipping compares elements of gradients with {value:g} at the loss scales {scales:g}",
    "scale.element-limit.effect": "The limit of {value:g} applies to gradients times {scale:g}",
    "scale.weights": "Unscaling divides a term of {value:.3g} times the weights at the loss scales {scales:g}",
    "scale.weights.effect": "1/{scale:g} of the term along the weights is left",
    "scale.next": "Gradients are divided by the next window's loss scale, {scale:g}x their own",
    "scale.next.effect": "Gradients are 1/{scale:g}x of the correct ones whenever the scale grows",
    "overflow.own": "Gradients overflowed at the script's loss scale {scale:g}, and the step uses finite ones instead",
    "overflow.own.effect": "The gradients of {lost} of {used:parameter} are not computed",
    "rate.negative": "The learning rate is {rate:.3g}",
    "rate.negative.effect": "A negative rate steps uphill: the loss grows",
    "schedule.before-step": "{name} steps between the backward pass and the optimizer's step",
    "schedule.before-step.effect": "The step's learning rate is {after:.3g} instead of {before:.3g}",
    "schedule.ends-early": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.ends-early.effect": "The learning rate is 0 in the last {still} of {steps:step}",
    "schedule.of-another": "{name} steps for an optimizer that never does: another one steps its parameters",
    "schedule.of-another.effect": "The learning rate stays {rate:g} in {steps:step}",
    "schedule.never-steps": "{name} never steps in {steps:step}: the learning rate stays {rates:g}",
    "schedule.steps-often": "{name} steps {often:.2g} times for each step of its optimizer",
    "schedule.past-its-end": "{name} is made for {made_for:step} and steps {times:time}",
    "schedule.before-first-step": "{name} steps {times:time} before the first step of its optimizer",
    "schedule.without-steps": "{name} steps {times:time} after the last step of its optimizer",
    "schedule.zero-rate": "The learning rate of some parameters is 0 in all {steps:step}",
    "schedule.low-rate": "The learning rate is below 1e-4 of its maximum {most:.3g} in {low} of {steps:step}",
    "loss.cut-off": "No graph leads from any of {losses} losses to a parameter: each is a new number",
    "loss.cut-off.effect": "{steps:step} change nothing",
}
