"""The broken laws of a case, and what its ranks did, as fields of its record."""

from __future__ import annotations

from pathlib import Path

from conformance.adapter.loading import place_of
from conformance.laws import checking
from conformance.laws import timeline as drawn
from conformance.laws.fitting import fitted
from conformance.laws.run import Run
from conformance.results.records import PASSED, Finding, Join, Moment, Timeline
from conformance.trace.events import Event
from conformance.verdict.judgement import Judgement
from conformance.verdict.paths import text_of


def findings(judgement: Judgement, target: str) -> tuple[Finding, ...]:
    """The broken laws, MUSTs first. ``target``: the trainer's, beside whose file its other files may be."""
    observed = _observed(judgement)
    return tuple(_finding(finding, observed, judgement.runs[0], target) for finding in judgement.findings)


def timeline(judgement: Judgement) -> Timeline | None:
    """What the ranks did, for a case with something to explain."""
    nothing_to_explain = not judgement.findings and judgement.verdict in (*PASSED, "INCONCLUSIVE")
    if not judgement.runs or nothing_to_explain:
        return None
    window = _window(judgement)
    run = next((run for run in judgement.runs if any(one.number == window for one in run.windows)), judgement.runs[0])
    shown = drawn.timeline(run, window, judgement.findings)
    return Timeline(
        moments=tuple(map(_moment, shown.moments)),
        window=shown.window,
        joins=tuple(Join(tuple(group)) for group in shown.joins),
        cut=shown.cut,
    )


def _finding(finding: checking.Finding, observed: str | None, run: Run, target: str) -> Finding:
    law, broken = finding.law, finding.broken
    shown = sorted({*broken.shows, broken.event}, key=lambda event: (event.time, event.rank, event.seq))
    return Finding(
        law=law.id,
        level=law.level,
        says=law.says,
        contradiction=broken.contradiction,
        fix=fitted(law.fix, run),
        count=finding.count,
        ranks=tuple(finding.ranks),
        effect=broken.effect,
        observed=observed if law.level == "MUST" else None,
        window=finding.window,
        where=None if broken.event.where is None else broken.event.line,
        source=source_of(broken.event, target),
        slice=tuple(map(_moment, drawn.in_words(shown, [broken.event]))),
    )


def source_of(event: Event, target: str) -> tuple[str, ...]:
    """The texts of the lines of an event; nothing unless all of them are found. ``target``: the trainer's."""
    place = place_of(target)
    folder = Path(place).parent if place.endswith(".py") else None
    texts = [text_of(path, line, folder) for path, line, _ in filter(None, (event.where, event.called_from))]
    return tuple(filter(None, texts)) if all(texts) else ()


def _observed(judgement: Judgement) -> str | None:
    """What the numbers did, in a sentence."""
    difference = judgement.difference
    if judgement.verdict == "FAIL (law)":
        return "The numbers of this case are right all the same."
    if difference is None or difference.observed is None:
        return None
    what = "gradient" if difference.quantity == "gradient" else "weight"
    return (
        f"In step {difference.step}, a {what} of rank {difference.rank} was {difference.observed:.6g}, but should be "
        f"{float(difference.expected):.6g}."
    )


def _window(judgement: Judgement) -> int | None:
    """The window to show: where a law was first broken, or numbers first differed, else the last one reached."""
    if judgement.findings:
        return judgement.findings[0].window
    if judgement.difference is not None:
        steps = judgement.ranks[judgement.difference.rank].steps
        return steps[judgement.difference.step].window
    if judgement.divergence is not None:
        return judgement.divergence.window
    return max((window.number for run in judgement.runs for window in run.windows), default=None)


def _moment(moment: drawn.Moment) -> Moment:
    event = moment.event
    return Moment(
        rank=event.rank,
        time=round(moment.time, 3),
        event=event.event,
        label=moment.label,
        where=None if event.where is None else "{}:{}".format(*event.where),
        micro_batch=event.micro_batch,
        marked=moment.marked,
    )
