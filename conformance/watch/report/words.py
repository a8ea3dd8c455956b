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
    # Order of calls in a window, and clipping.
    "clearing.other-passes": "{count} of {steps:step} also use an earlier backward pass ({at})",
    "clip.after-step": "clipping comes after the step and before the next backward pass",
    "clip.before-averaging": "each rank clips its own gradients before they are averaged",
    "clip.before-passes": "clipping comes before the backward pass, when there are no gradients",
    "clip.between-passes": "clipping comes between two backward passes of a window",
    "clip.clipped-again": "clipped gradients are added up and clipped again",
    "clip.limit-not-reached": "the norm of {norm} is within the limit of {limit:g}, so no gradient has changed yet",
    "clip.not-by-norm": "no gradient is clipped: the step uses a norm of at least {norm}, and the limit is {limit:g}",
    "clip.not-by-value": "no gradient is clipped: the step uses a norm of at least {norm}, "
    "and the limit of an element is {limit:g}",
    "clip.passes-unclipped": "the gradients of {passes} of {all:backward pass} are not clipped",
    "clip.used-up": "clipping gets a generator of parameters that is used up",
    "clipping.aside": "clipped gradients reach no step, and steps use gradients that are not clipped ({at})",
    "clipping.before-change": "gradients change after clipping: the step uses {ratio:.3g}x the clipped norm",
    "clipping.before-last-pass": "clipping comes before the last backward pass (norm {norm}, limit {limit:g})",
    "clipping.by-value": "gradients are clipped element by element, to {limit:g}",
    "clipping.nothing": "a clip call gets no parameters",
    "clipping.parts": "{calls:clip call} cover {clipped} of {all:parameter}, none of them all",
    "finite.of": "the gradients of {wrong} of {all:parameter} are NaN or infinite",
    "finite.step": "a step uses gradients that are not finite",
    "loss-scale.not-finite": "a step gets gradients that are not finite, which the script may discard",
    "micro-batches.same-gradient": "{passes} of {all:backward pass} repeat the gradients of the same forward pass",
    "passes.contains": "a backward pass goes through the loss of an earlier one again",
    "passes.evaluated": "the step also uses gradients of an evaluation, which were not cleared",
    "passes.evaluated-of": "{passes} of {all:backward pass} of the step are in evaluation mode",
    "passes.scaled": "the gradients of {passes} of {all:backward pass} are not divided by {scale:g}",
    "passes.stale": "{stale} of {all:gradient} are of earlier weights",
    "passes.stale-closure": "a closure is called {calls:time} at several weights and computes no gradient",
    "passes.twice": "the gradients of {passes} of {all:backward pass} are added up twice",
    "passes.unreduced": "gradients of {parameters:parameter} are not reduced yet: {names}",
    "passes.unreduced-of": "{parameters} of {all:parameter} lack gradients of this window",
    "passes.unscaled-between": "unscale_ comes between two backward passes of a window",
}
