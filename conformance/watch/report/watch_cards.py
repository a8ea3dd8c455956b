"""Turns the problems of a watch into the cards of reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.report.card import Card
from conformance.report.command import relative, without_user
from conformance.report.places import SEEN, Place
from conformance.report.text import plural
from conformance.results.result_lines import Timeline
from conformance.watch import records
from conformance.watch.judging.findings import Cause, Finding, Findings
from conformance.watch.judging.windows import Scene
from conformance.watch.records import Site
from conformance.watch.report import moments
from conformance.watch.report.sentences import fix, sentence


@dataclass(frozen=True)
class Picture:
    """A timeline with the law that each marked moment breaks."""

    timeline: Timeline
    laws: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class WatchCard(Card):
    """bad: the first window with the problem. good: the first correct window of the same optimizer."""

    bad: Picture | None = field(kw_only=True)
    good: Picture | None = field(kw_only=True)


def cards(causes: Sequence[Cause], findings: Findings, command: str) -> list[WatchCard]:
    """command: as from `shown`."""
    return [_card(cause, findings, command) for cause in causes]


def _card(cause: Cause, findings: Findings, command: str) -> WatchCard:
    first, law = cause.first, cause.first.text
    scene = findings.scenes.get(first.key)
    good = None if scene is None else _good(scene, findings)
    where, places = moments.place(first.site, findings.sources), tuple(_places(first, scene, findings))
    extent = _extent(cause, findings)
    scope = f"rank{'s' if len(cause.ranks) > 1 else ''} {', '.join(map(str, sorted(cause.ranks)))}"
    return WatchCard(
        rule=law.id,
        verdict="FAIL (law)",
        title=sentence(first.says),
        where=where,
        role=places[0].label if places else "at",
        own_line=None if first.site is None else (relative(_source(first.site, findings)[0]), first.site[1]),
        places=places,
        facts=(("expected", law.says), ("observed", f"{extent}, on {scope}"), ("why", law.why)),
        slice=(),
        effect=None if first.effect is None else sentence(first.effect),
        fix=None,
        advice=fix(first),
        extent=extent,
        scope=scope,
        commands=(("rerun", f"conformance watch -- {command}"),) if command else (),
        law=law.id,
        bad=None if scene is None else Picture(*moments.marked(scene, first, findings.sources)),
        good=None if good is None else Picture(moments.timeline(good, findings.sources)),
    )


def _places(first: Finding, scene: Scene | None, findings: Findings) -> Iterator[Place]:
    """The line of the problem, and that of the backward pass that it concerns: of a step, the last one: it may divide
    the loss."""
    site = first.site
    calls = [record for done in scene.of.values() for record in done] if scene else []
    of_step = any(isinstance(record, records.Stepped) and record.site == site for record in calls)
    passes = [record.site for record in calls if isinstance(record, records.Backward)] if of_step else []
    backward = first.backward or (passes[-1] if passes else None)
    for label, one in ((SEEN if of_step and first.text.is_seen_later else "at", site), ("backward", backward)):
        if one is not None and (label != "backward" or one != site):
            place = Place(label, moments.place(one, findings.sources) or "", _source(one, findings)[1])
            yield replace(place, text=place.numbered.get(one[1], "")) if label == "backward" else place


def _source(site: Site, findings: Findings) -> tuple[str, str]:
    """The file of a line, and its text."""
    file, line = site[:2] if site else ("", 0)
    path, text = findings.sources.get((file, line), (file, ""))
    return path, without_user(text)


def _good(bad: Scene, findings: Findings) -> Scene | None:
    """A correct window of the same optimizer."""
    found = (history.good for history in findings.histories)
    return next((one for one in found if one and one.optimizer == bad.optimizer and one.index != bad.index), None)


def _extent(cause: Cause, findings: Findings) -> str:
    """In how many of all steps, and since which."""
    first = cause.first
    if first.step is None:
        return "in the whole run"
    of = f" of optimizer {first.optimizer}" if first.optimizer else ""
    every = findings.stepped[first.optimizer] if first.optimizer is not None else 0
    if 1 < cause.steps <= every:
        return f"in {cause.steps} of {plural(every, 'step')}{of}, first at step {first.step}"
    return f"first at step {first.step}" + (f" of {every}{of}" if every else "")
