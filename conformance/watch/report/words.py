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
    # Denominators.
    "ranks.means-added": "the update is {times:g} times the mean over all targets: the ranks' means are added up",
    "ranks.divided-again": "the update is {times} times the mean: losses are divided by the ranks, and averaged",
    "ranks.divided-by-all": "losses are divided by {targets:target} of all ranks, and averaged over ranks again",
    "micro-batches.sum": "losses of {passes} micro-batches are added up, and nothing divides them",
    "micro-batches.short": "a window of {passes:micro-batch} divides each loss by {number}",
    "micro-batches.divided": "each loss is divided by {number}, and its window has {passes:backward pass}",
    "micro-batches.divided-twice": "each of {number} losses is divided by {number} twice",
    "micro-batches.last-only": "{batches} batches are loaded, but only one loss, divided by {batches}, goes backward",
    "micro-batches.uneven": "some losses of a window count {times:g} times as much as the others",
    "micro-batches.means": "micro-batches of {least} to {most} targets count alike: a target weighs {times}x another",
    "micro-batches.target-weighs": "the largest weight of a target in the update is {times} times the smallest",
    "micro-batches.total": "the targets of a step weigh {least} to {most} together, and 1 in a mean",
    "times-the-mean": "the update is {times} times the mean",
}
