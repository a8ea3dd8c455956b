"""Parameters that get gradients, and that no optimizer holds."""

from __future__ import annotations

from conformance.watch import records
from conformance.watch.recording.recording import Recording

_STEPS = 3
"""Steps after which to look: optimizers that are made later hold more."""


def note_unheld(recording: Recording) -> None:
    """Note `Unheld` once, if there are any."""
    if sum(recording.steps.values()) != _STEPS:
        return
    unheld = {
        name: list(parameter.shape)
        for root in list(recording.roots)
        for name, parameter in root.named_parameters()
        if parameter.requires_grad and parameter.grad is not None and not recording.parameters.knows(parameter)
    }
    if unheld:
        recording.note(records.Unheld([*unheld], [*unheld.values()]))
