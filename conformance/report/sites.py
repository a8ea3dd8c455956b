"""Which calls a case shows in the window to look at: what there is to say where no line is to blame by itself."""

from __future__ import annotations

from conformance.results.records import CaseRecord

from .text import listed, one_line

#: By the kind of event, in the order of a window.
_CALLS = {
    "forward": "forward",
    "backward_begin": "backward",
    "unscale": "unscale",
    "clip": "clip",
    "step": "step",
    "schedule": "schedule",
    "report": "report",
}


def looked_at(case: CaseRecord) -> str | None:
    """The calls of one rank, each with its line, in a sentence; None if none was seen."""
    timeline = case.timeline
    if timeline is None:
        return None
    lines: dict[str, dict[str, None]] = {}
    for moment in timeline.moments:
        if moment.event in _CALLS and moment.where is not None:
            lines.setdefault(_CALLS[moment.event], {})[moment.where] = None
    if not lines:
        return None
    calls = [f"{call} ({', '.join(map(one_line, lines[call]))})" for call in _CALLS.values() if call in lines]
    when = "before training" if timeline.window is None else f"in window {timeline.window}"
    return f"no line is to blame by itself; looked at {when}: {listed(calls)}"
