"""Steps that find no gradients, as an optimizer's whose model is no longer the one that trains."""

from __future__ import annotations

from conformance.verdict.evidence import RankEvidence


def idle_after(rank: RankEvidence) -> int | None:
    """The window of the last step that found gradients, if each later one found none after a backward; None if there is
    no later one, or no step found any."""
    window, goes_backward, is_idle = None, False, False
    for event in rank.outcome.events:
        if event["event"] == "backward_end":
            goes_backward = True
        elif event["event"] in ("step", "skip"):
            gradients = event["gradients"]
            if gradients and all(one is None for one in gradients):
                is_idle |= goes_backward
            else:
                window, is_idle = event["window"], False
            goes_backward = False
    return window if is_idle else None
