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
    # coverage, detached, discarded, owners
    "coverage.unheld": "{count:parameter} with gradients in no optimizer: {names}",
    "coverage.no-gradient": "{count} of {all} parameters of the optimizer never get a gradient: {names}",
    "coverage.no-more-gradient": "{count} of {all} parameters of the optimizer get none after step {step}: {names}",
    "coverage.taken-away": "{count} of {all} parameters get gradients that are cleared before every step: {names}",
    "coverage.zero": "all gradients of the optimizer are 0 in all {steps:step}",
    "coverage.no-more-steps": "the optimizer stops after {steps:step}: {passes:backward pass} follow",
    "clearing.discarded": "{passes:backward pass} cleared before a step used them, in {windows} of {steps:step}",
    "held.replaced": "{count:parameter} get no gradient in {steps:step}, as many in no optimizer do: {names}",
    "held.left-over": "each of {ranks} ranks steps {each} parameters, and none steps {count} more: {names}",
    "held.copies": "the optimizer steps {count} copies of parameters, which stay the same for {steps:step}: {names}",
    "held.unfrozen": "no optimizer got {count:parameter} that were unfrozen while others trained: {names}",
    "held.stays": "{count:parameter} of the model never change",
    "held.stale": "FSDP2 still uses the old weights of {count:parameter}: call `set_reshard_after_backward(True)`",
    "held.old": "gradients are of weights that are {steps:step} old",
    "same-weights.unsent": "only some ranks step {count:parameter} and never send them to the others: {names}",
    "same-weights.differ": "{count:parameter} differ between the ranks",
    "from-the-model.cut-off": "no graph leads from the losses of {passes:backward pass} to a parameter",
    "from-the-model.idle": "{steps:step} change nothing",
    "clip-something.copies": "clipping gets {count} tensors without gradients, not the parameters of the optimizer",
    "clip-something.nothing": "no gradient is clipped to {limit:g}",
    "used.cleared-before": "{passes:backward pass} cleared before a step used them, for {steps:step}",
    "used.step-without": "{steps:step} without gradients: this line clears them after the backward pass",
    "used.no-step": "the optimizer never steps, and its schedule steps {turns:time}",
    "used.lost": "the gradients of {passes:backward pass} are in no update",
    "cleared.not-finite": "{passes:backward pass} were added to gradients that are not finite and were never cleared",
    "cleared.no-step": "the optimizer makes no step after step {step}",
}
