"""Turns a window into a timeline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from conformance.report.command import relative
from conformance.report.swimlanes import key
from conformance.results.result_lines import Moment, Timeline
from conformance.watch import records
from conformance.watch.judging.findings import Finding
from conformance.watch.judging.windows import Scene

Sources: TypeAlias = Mapping[tuple[str, int], tuple[str, str]]
"""As in `Findings`."""


def timeline(scene: Scene, sources: Sources) -> Timeline:
    """The timeline of a window. Times are the order of each rank's calls: the recorder has no clock."""
    moments = [moment for rank, done in scene.of.items() for moment, _ in _of_rank(rank, done, sources)]
    return Timeline(tuple(moments), scene.index, cut=scene.cut)


def marked(scene: Scene, finding: Finding, sources: Sources) -> tuple[Timeline, dict[tuple[object, ...], str]]:
    """The timeline with the moments that break the law marked, and the law by moment, as from `swimlanes.broken_at`."""
    moments, laws = [], {}
    for rank, done in scene.of.items():
        for moment, record in _of_rank(rank, done, sources):
            if _shows(record, rank, finding):
                moment = replace(moment, marked=True)
                laws[key(moment)] = finding.law
            moments.append(moment)
    return Timeline(tuple(moments), scene.index, cut=scene.cut), laws


def _shows(record: records.Record, rank: int, finding: Finding) -> bool:
    if finding.passes:
        return isinstance(record, records.Backward) and (rank, record.backward) in finding.passes
    return rank in finding.ranks and finding.site is not None and getattr(record, "site", None) == finding.site


def _of_rank(rank: int, done: list[records.Record], sources: Sources) -> Iterator[tuple[Moment, records.Record]]:
    micro_batch = -1
    for number, record in enumerate(done):
        if isinstance(record, records.Backward):
            micro_batch += 1
        event, label = _words(record)
        where = place(getattr(record, "site", None), sources)
        at = micro_batch + 1 if isinstance(record, records.Entered) else micro_batch
        yield Moment(rank, float(number), event, label, where, at if at >= 0 else None), record


def event(record: records.Record) -> str:
    """The kind of event."""
    return _words(record)[0]


def _words(record: records.Record) -> tuple[str, str]:
    """The kind of event, and its label."""
    match record:
        case records.Entered():
            return "forward", "forward"
        case records.Backward():
            scale = f", loss scale {record.scale:g}" if record.scale not in (None, 1.0) else ""
            by = "".join(f" × {factor:.3g}" for factor in record.factors)
            return "backward", f"backward{f' of the loss{by}' if by else ''}{scale}"
        case records.Cleared():
            return "zero_grad", "gradients cleared"
        case records.Clipped():
            norm = "" if record.norm is None else f", the norm is {record.norm:.3g}"
            return "clip", f"clip by {record.how} {record.limit:g}{norm}"
        case records.Unscaled():
            return "unscale", f"unscale by {record.scale:g}"
        case records.Updated():
            return "update", f"loss scale {record.before:g} to {record.after:g}"
        case records.Scheduled():
            before, after = (next(iter(rates), None) for rates in (record.before, record.after))
            return "schedule", f"{record.name}, rate {_rate(before)} to {_rate(after)}"
        case records.Stepped():
            return "step", f"{record.type} steps"
        case records.Skipped():
            return "skipped step", "step skipped"
    raise TypeError(f"a picture shows no {type(record).__name__}")


def _rate(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.3g}"


def place(site: records.Site, sources: Sources) -> str | None:
    """A line, with its file relative to the current folder if below it, else as sites name it."""
    if site is None:
        return None
    path, _ = sources.get((site[0], site[1]), (site[0], ""))
    below = relative(path)
    return f"{site[0] if os.path.isabs(below) else below}:{site[1]}"
