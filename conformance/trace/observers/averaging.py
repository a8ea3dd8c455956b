"""Running averages of weights, as `torch.optim.swa_utils.AveragedModel` keeps them beside a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.values import Number, elements


def observe(recording: Recording) -> Seams:
    """Records `average`, in cases that are resumed."""

    def update(original: Callable[..., Any], averaged: AveragedModel, model: torch.nn.Module) -> Any:
        updates, before = int(averaged.n_averaged), _values(averaged)
        result = original(averaged, model)
        number = recording.numbers.of("average", averaged)
        recording.note("average", average=number, updates=updates, before=before, after=_values(averaged))
        return result

    if recording.life is not None and recording.watched.is_readable:
        yield replaced(AveragedModel, "update_parameters", update)


def _values(averaged: AveragedModel) -> list[Number]:
    return [value for parameter in averaged.module.parameters() for value in elements(parameter)]
