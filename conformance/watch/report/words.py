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
    # Data.
    "data.same-inputs": "All ranks read the same inputs in {alike} of {forwards:forward}",
    "data.same-inputs.effect": "{ranks} ranks train on 1/{ranks} of the samples that they could",
    "data.same-epoch": "{share:.0%} of a rank's samples came on another rank in the same epoch",
    "data.same-epoch.effect": "{share:.0%} of the samples count more than once an epoch",
    "data.same-samples": "Two ranks have {share:.0%} of their samples in common",
    "data.same-micro-batches": "All {passes} backward passes of a step gave the same gradients",
    "data.same-order": "{times} epochs in a row began with the same {samples:sample}, each as number {epoch}",
    "data.same-order.effect": "{times} epochs read the same batches",
    "data.cut-twice": "{samples:sample} came again in later epochs, each only on its own rank",
    "data.cut-twice.effect": "An epoch reads 1/{ranks} of the data",
    "data.unread-parts": "{read} of the {parts} parts that a sampler deals out are read",
}
