"""Steps that find no gradients, as an optimizer's whose model is no longer the one that trains."""

from __future__ import annotations

from conformance.trace.events import Attempt, BackwardEnd
from conformance.verdict.evidence import RankEvidence


def idle_after(rank: RankEvidence) -> int | None:
    """The window of the last step that found gradients, if each later one found none after a backward; None if there is
    no later one, or no step found any."""
    window, goes_backward, is_idle = None, False, False
    for event in rank.events.events:
        if isinstance(event, BackwardEnd):
            goes_backward = True
        elif isinstance(event, Attempt):
            if event.gradients and all(one is None for one in event.gradients):
                is_idle |= goes_backward
            else:
                window, is_idle = event.window, False
            goes_backward = False
    return window if is_idle else None
