"""What the laws make of a case, and what its ranks did, as fields of the results file."""

from __future__ import annotations

from typing import Any

from conformance.laws.checking import Finding
from conformance.laws.event import Event
from conformance.laws.timeline import Moment, in_words, timeline
from conformance.verdict.judge import Judgement


def story(judgement: Judgement) -> dict[str, Any]:
    """``laws``: windows checked by each law that had any; ``findings``; and a ``timeline``, if there is something to
    explain.
    """
    fields: dict[str, Any] = {
        "laws": {verified.law.id: verified.checked for verified in judgement.laws if verified.checked},
        "findings": [_finding(finding, _observed(judgement)) for finding in judgement.findings],
    }
    if judgement.findings or not judgement.verdict.startswith(("PASS", "INCONCLUSIVE")):
        fields["timeline"] = _timeline(judgement)
    return fields


def _finding(finding: Finding, observed: str | None) -> dict[str, Any]:
    law, broken = finding.law, finding.broken
    shown = sorted({*broken.shows, broken.event}, key=lambda event: (event.time, event.rank, event.seq))
    return {
        "law": law.id,
        "level": law.level,
        "says": law.says,
        "contradiction": broken.contradiction,
        "mend": law.mend,
        "count": finding.count,
        "ranks": list(finding.ranks),
        "effect": broken.effect,
        "observed": observed if law.level == "MUST" else None,
        "window": finding.window,
        "where": _line(broken.event),
        "slice": [_moment(moment) for moment in in_words(shown, [broken.event])],
    }


def _observed(judgement: Judgement) -> str | None:
    """What the numbers did, in a sentence."""
    difference = judgement.difference
    if judgement.verdict == "FAIL (law)":
        return "The numbers of this case are right all the same."
    if difference is None or difference.observed is None:
        return None
    what = "gradient" if difference.quantity == "gradient" else "weights"
    return (
        f"In step {difference.step} the {what} of rank {difference.rank} came out as {difference.observed:.6g} where "
        f"{float(difference.expected):.6g} was right."
    )


def _timeline(judgement: Judgement) -> dict[str, Any]:
    assert judgement.run is not None
    shown = timeline(judgement.run, _window(judgement), judgement.findings)
    return {
        "window": shown.window,
        "moments": [_moment(moment) for moment in shown.moments],
        "joins": [{"moments": list(group)} for group in shown.joins],
        "cut": shown.cut,
    }


def _window(judgement: Judgement) -> int | None:
    """The window to show: where a law was first broken, where the numbers parted, else the last one reached."""
    assert judgement.run is not None
    if judgement.findings:
        return judgement.findings[0].window
    if judgement.difference is not None:
        steps = judgement.ranks[judgement.difference.rank].steps
        return steps[judgement.difference.step].window
    if judgement.divergence is not None:
        return judgement.divergence.window
    return max((window.number for window in judgement.run.windows), default=None)


def _moment(moment: Moment) -> dict[str, Any]:
    fields = {
        "rank": moment.event.rank,
        "time": round(moment.time, 3),
        "event": moment.event.kind,
        "label": moment.label,
        "where": None if moment.event.where is None else "{}:{}".format(*moment.event.where),
        "micro_batch": moment.event.micro_batch,
        "marked": moment.marked or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _line(event: Event) -> str | None:
    return None if event.where is None else event.place
