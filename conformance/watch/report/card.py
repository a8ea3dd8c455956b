"""The causes of a watch as the cards of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.report.card import Card
from conformance.report.command import relative, without_user
from conformance.results.records import Timeline
from conformance.watch.judging.findings import Cause, Finding, Findings
from conformance.watch.judging.windows import Scene
from conformance.watch.records import Site
from conformance.watch.report import moments
from conformance.watch.report.words import sentence


@dataclass(frozen=True)
class Picture:
    """A timeline, with the law that each marked moment breaks."""

    timeline: Timeline
    laws: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class WatchCard(Card):
    """bad: the first window that shows it. good: the first one of the same optimizer in which nothing is wrong."""

    bad: Picture | None = field(kw_only=True)
    good: Picture | None = field(kw_only=True)


def cards(causes: Sequence[Cause], findings: Findings, command: str) -> list[WatchCard]:
    """command: as `shown` has it."""
    return [_card(cause, findings, command) for cause in causes]


def _card(cause: Cause, findings: Findings, command: str) -> WatchCard:
    first, law = cause.first, cause.first.text
    scene = findings.scenes.get(first.key)
    good = None if scene is None else _good(scene, findings)
    where, own_line, text = _line(first.site, findings)
    return WatchCard(
        rule=law.id,
        verdict="FAIL (law)",
        title=_sentence(first),
        where=where,
        own_line=own_line,
        source=((where, text),) if where and text else (),
        details=(f"{law.says} ({law.id})", law.why),
        slice=(),
        effect=None if first.effect is None else sentence(first.effect),
        fix=None,
        advice=law.fix,
        extent=_extent(cause),
        scope=f"rank{'s' if len(cause.ranks) > 1 else ''} {', '.join(map(str, sorted(cause.ranks)))}",
        commands=(("again", f"conformance watch -- {command}"),) if command else (),
        bad=None if scene is None else Picture(*moments.marked(scene, first, findings.sources)),
        good=None if good is None else Picture(moments.timeline(good, findings.sources)),
    )


def _sentence(finding: Finding) -> str:
    text = sentence(finding.says)
    return text[:1].upper() + text[1:]


def _line(site: Site, findings: Findings) -> tuple[str | None, tuple[str, int] | None, str]:
    """The line as reports name it, its file and number, and its text."""
    if site is None:
        return None, None, ""
    file, number = site[0], site[1]
    path, text = findings.sources.get((file, number), (file, ""))
    return moments.place(site, findings.sources), (relative(path), number), without_user(text)


def _good(bad: Scene, findings: Findings) -> Scene | None:
    """A right window of the same optimizer."""
    found = (history.good for history in findings.histories)
    return next((one for one in found if one and one.optimizer == bad.optimizer and one.index != bad.index), None)


def _extent(cause: Cause) -> str:
    first = cause.first
    words = ["once" if cause.count == 1 else f"{cause.count} times"]
    if first.step is not None:
        words.append(f"{'at' if cause.count == 1 else 'first at'} step {first.step}")
    if first.optimizer:
        words.append(f"of optimizer {first.optimizer}")
    return ", ".join(words[:2]) + "".join(f" {word}" for word in words[2:])
