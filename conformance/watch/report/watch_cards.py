"""Turns the problems of a watch into the cards of reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.report.card import Card
from conformance.report.command import relative, without_user
from conformance.report.edits import edit_of, in_names
from conformance.report.places import SEEN, Place
from conformance.report.text import plural
from conformance.results.result_lines import Timeline
from conformance.watch import records
from conformance.watch.judging.findings import Cause, Finding, Findings, Open, Said
from conformance.watch.judging.properties import CORE
from conformance.watch.judging.windows import Scene
from conformance.watch.records import Site
from conformance.watch.report import moments
from conformance.watch.report.remedies import edit as edits
from conformance.watch.report.remedies import effect, fix, fixed, way
from conformance.watch.report.sentences import observed, sentence
from conformance.watch.verdict import Row


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


def open_cards(rows: Sequence[Row], findings: Findings) -> list[Card]:
    """Facts that the author can fix, or confirm with an option."""
    asked = (row for row in rows if row.state == "OPEN")
    return [_open_card(row, fact, findings) for row in asked for fact in row.open if fixed(fact.says)]


def _open_card(row: Row, fact: Open, findings: Findings) -> Card:
    known = {} if fact.site is None else {"it": _place("at", fact.site, findings)}
    edit, value, count = edit_of(edits(fact.says), known), fact.shows[1], extent(row, fact)
    return Card(
        rule=fact.says.code,
        verdict="INCONCLUSIVE",
        title=sentence(fact.says),
        where=moments.place(fact.site, findings.sources),
        own_line=_own_line(fact.site, findings),
        places=() if edit is not None else tuple(known.values()),
        facts=(("if intended", f"`--expect {row.of.value}={value}`"),) if value is not None else (),
        slice=(),
        effect=effect(fact.says),
        fix=None,
        advice=in_names(fixed(fact.says), known),
        edit=edit,
        extent=f"in {count}" if count else "",
        scope="",
        commands=(),
    )


def extent(row: Row, fact: Open) -> str | None:
    """In how many of all steps it was seen; None if its count is not of steps."""
    is_of_steps = row.of in CORE and 1 < fact.count <= row.judged
    return of_steps(fact.count, row.judged + sum(row.idle.values()), row.ranks) if is_of_steps else None


def of_steps(count: int, every: int, ranks: int) -> str:
    """How many of the steps of all ranks, counted once for each rank. A step of all ranks is one step, if all count."""
    if every % ranks:
        return f"{count} of {plural(every, 'step')} of {ranks} ranks"
    each = every // ranks
    if count in (0, every):
        return f"{count and each} of {plural(each, 'step')}"
    return f"{count} of {plural(every, 'step')}" + (f" ({each} on each rank)" if ranks > 1 else "")


def _card(cause: Cause, findings: Findings, command: str) -> WatchCard:
    first, law = cause.first, cause.first.text
    scene = findings.scenes.get(first.key)
    good = None if scene is None else _good(scene, findings)
    sites = {moments.place(site, findings.sources): site for site in _sites(first, scene, findings).values()}
    known = {call: _place("at", site, findings) for call, site in _sites(first, scene, findings).items()}
    edit = edit_of(edits(first.says, way(first, findings)) or law.edits, known)
    places = tuple(_places(first, scene, findings))
    role, where = (places[0].label if places else "at"), moments.place(first.site, findings.sources)
    own_line = _own_line(first.site, findings)
    if edit is not None:
        role, where = edit.titled(role, where)
        # The edit may name a neighbour of a call's line.
        file = where.rpartition(":")[0]
        site = next(site for at, site in sites.items() if at and at.rpartition(":")[0] == file)
        own_line = (relative(_source(site, findings)[0]), int(where.rpartition(":")[2]))
    facts = ("expected", law.says), ("observed", observed(first.says)), ("why", law.why)
    ranks = f"rank{'s' if len(cause.ranks) > 1 else ''} {', '.join(map(str, sorted(cause.ranks)))}"
    if len(cause.ranks) == findings.ranks:
        ranks = "both ranks" if findings.ranks == 2 else f"all {findings.ranks} ranks"
    return WatchCard(
        rule=law.id,
        verdict="FAIL (law)",
        title=sentence(first.says),
        where=where,
        role=role,
        own_line=own_line,
        places=places if edit is None else edit.others(places),
        facts=tuple((name, text) for name, text in facts if text),
        slice=(),
        effect=None if first.effect is None else _effect(first.effect, first.step if cause.varies else None),
        fix=None,
        advice=in_names(fix(first, findings), known),
        edit=edit,
        extent=_extent(cause, findings),
        scope=f"on {ranks}" if findings.ranks > 1 else "",
        commands=(("rerun", f"conformance watch -- {command}"),) if command else (),
        law=law.id,
        bad=None if scene is None else Picture(*moments.marked(scene, first, findings.sources)),
        good=None if good is None else Picture(moments.timeline(good, findings.sources)),
    )


def _effect(effect: Said, step: int | None) -> str:
    """step: the one with these numbers, if other steps have others."""
    return sentence(effect) if step is None else f"{sentence(effect)} in step {step}"


def _sites(first: Finding, scene: Scene | None, findings: Findings) -> dict[str, Site]:
    """The lines that an edit may name: of the last call of each kind, of the problem, and of the optimizer."""
    calls = [record for done in scene.of.values() for record in done] if scene else []
    sites: dict[str, Site] = {}
    optimizers = [*findings.steps_at] if first.optimizer is None else [first.optimizer]
    if len(optimizers) == 1:
        sites["step"] = findings.steps_at.get(optimizers[0])
    # A call that is missing in the wrong window may be in a correct one.
    good = _good(scene, findings) if scene else None
    known = [*([record for done in good.of.values() for record in done] if good else []), *calls]
    stepped = [one for one in known if isinstance(one, (records.Stepped, records.Skipped))]
    own = [one for one in stepped if isinstance(one, records.Stepped) and one.optimizer == first.optimizer]

    def is_of_problem(record: records.Record) -> bool:
        if isinstance(record, records.Unscaled):
            # A scaler's step also unscales.
            return record.optimizer == first.optimizer and all(record.site != one.site for one in stepped)
        if isinstance(record, records.Cleared) and own:
            # Other calls clear the gradients of another optimizer, or those of another phase.
            is_near = record in calls or any(_function(record.site) == _function(one.site) for one in own)
            return is_near and any(not {*record.parameters}.isdisjoint(one.parameters) for one in own)
        return True

    sites |= {moments.event(record): getattr(record, "site", None) for record in known if is_of_problem(record)}
    exchange = findings.shared_at.get(first.optimizer or 0)
    # What is still being exchanged cannot be divided.
    if exchange is not None and "async" not in _place("at", exchange, findings).own:
        sites["exchange"] = exchange
    sites |= {"optimizer": findings.made.get(first.optimizer or 0), "it": first.site}
    if first.backward is not None:
        sites["backward"] = first.backward
    if any(isinstance(record, records.Backward) and record.waits for record in calls):
        # DDP decides in the forward pass whether it averages.
        sites["no_sync"] = sites.get("forward")
    return {call: site for call, site in sites.items() if site is not None}


def _function(site: Site) -> list[object]:
    return [*site[::2]] if site else []


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
            place = _place(label, one, findings)
            yield replace(place, text=place.own) if label == "backward" else place


def _place(label: str, site: Site, findings: Findings) -> Place:
    return Place(label, moments.place(site, findings.sources) or "", _source(site, findings)[1])


def _own_line(site: Site, findings: Findings) -> tuple[str, int] | None:
    return None if site is None else (relative(_source(site, findings)[0]), site[1])


def _source(site: Site, findings: Findings) -> tuple[str, str]:
    """The file of a line, and its text."""
    file, line = site[:2] if site else ("", 0)
    path, text = findings.sources.get((file, line), (file, ""))
    return path, without_user(text)


def _good(bad: Scene, findings: Findings) -> Scene | None:
    """A correct window of the same optimizer."""
    found = (history.good for history in findings.histories)
    return next((one for one in found if one and one.optimizer == bad.optimizer and one.index != bad.index), None)


def _optimizer(number: int, findings: Findings) -> str:
    """Which one of several optimizers, by its class and the line that made it; "" for the only one."""
    if len(findings.types) < 2:
        return ""
    made = {
        one: (name, moments.place(findings.made.get(one), findings.sources)) for one, name in findings.types.items()
    }
    (name, where), alike = made[number], sorted(one for one in made if made[one] == made[number])
    place = alike.index(number)
    which = "" if len(alike) == 1 else f"the {_PLACES[place]} " if place < len(_PLACES) else f"number {place + 1} of "
    return f" of {which}{name}{f' ({where})' if where else ''}"


_PLACES = ("first", "second", "third", "fourth")


def _extent(cause: Cause, findings: Findings) -> str:
    """In how many of all steps, and since which."""
    first = cause.first
    if first.step is None:
        return "in the whole run"
    of = "" if first.optimizer is None else _optimizer(first.optimizer, findings)
    every = findings.stepped[first.optimizer] if first.optimizer is not None else 0
    # Ranks with equal weights show that they use different gradients, until their weights differ.
    if cause.steps > 1 and every <= first.step:
        # Steps that not all ranks take are not among those that are counted.
        return f"in {plural(cause.steps, 'step')}{of}, first at step {first.step}"
    if 1 < cause.steps <= every and not first.is_bare:
        return f"in {cause.steps} of {plural(every, 'step')}{of}, first at step {first.step}"
    return f"first at step {first.step}" + (f" of {every}{of}" if every else "")
