"""The digest of a watch, and its plain text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

from conformance.laws.chapters.watch_scripts import LAWS
from conformance.report.ci import Digest
from conformance.report.command import shown
from conformance.report.summary import Summary
from conformance.report.text import one_line, plural, visible
from conformance.watch.judging.findings import Findings, Said
from conformance.watch.judging.properties import CORE, Property
from conformance.watch.report.moments import place
from conformance.watch.report.remedies import fixed
from conformance.watch.report.sentences import sentence, value
from conformance.watch.report.watch_cards import cards, extent, of_steps, open_cards
from conformance.watch.verdict import Expected, Outcome, Row, outcome

_TONES = {"CONFORMS": "good", "DOES NOT CONFORM": "bad", "UNDECIDED": "doubt"}
_UNITS = {
    Property.DATA: "comparison",
    Property.SCHEDULE: "schedule step",
    Property.COVERAGE: "parameter",
}
"""The unit of a property's count; otherwise steps."""

_TOGETHER = (Property.DENOMINATOR, Property.DATA, Property.COVERAGE)
"""Properties that are counted once for all ranks."""


def digest(findings: Findings, command: Sequence[str], expected: Expected | None = None) -> Digest:
    of, command_line = outcome(findings, expected), shown(command)
    return Digest(
        tool=("trainer-conformance", version("trainer-conformance")),
        command=command_line,
        summary=_summary(of, findings),
        cut_off=None,
        cards=cards(of.causes, findings, command_line),
        rules={law.id: law.says for law in LAWS.values()},
        unit="Properties",
        tally=[(state, sum(row.state == state for row in of.rows)) for state in ("PROVEN", "WRONG", "OPEN")],
        extent="; ".join([*lacks(findings), *(text for row in of.rows for text in open_facts(row, findings))]) or None,
    )


def _summary(of: Outcome, findings: Findings) -> Summary:
    """The verdict; a question comes before it."""
    asked = len(open_cards(of.rows, findings)) if of.verdict == "CONFORMS" else 0
    title = f"{plural(asked, 'question')}, otherwise {of.verdict}" if asked else of.verdict
    return Summary(title, headline(of, findings), _TONES["UNDECIDED" if asked else of.verdict])


def first_line(whole: Digest, command: Sequence[str]) -> tuple[str, str]:
    """The verdict, and what it is on."""
    said = ": ".join(filter(None, [subject(command), whole.summary.detail]))
    return whole.summary.title, f": {one_line(said)}"


def subject(command: Sequence[str]) -> str:
    """The script of a command; "" if it names no file of Python."""
    return one_line(next((os.path.basename(word) for word in command if word.endswith(".py")), ""))


def headline(of: Outcome, findings: Findings) -> str:
    """What the verdict rests on, in one sentence."""
    if of.causes:
        since = of.causes[0].first.step
        return f"{plural(len(of.causes), 'problem')}{'' if since is None else f', first at step {since}'}."
    if findings.lacks:
        return f"{sentence(findings.lacks[0])}."
    if not findings.stepped and not of.steps:
        return "No step of a torch optimizer was seen."
    are_open = ", ".join(row.of.value for row in of.rows if row.state == "OPEN")
    undecided = f"; open: {are_open}" if are_open else ""
    if not of.steps:
        return f"None of {plural(findings.stepped.total(), 'step')} could be judged{undecided}."
    proven = of_steps(of.proven, of.steps + findings.idle.total(), findings.ranks)
    judged = f"{proven} used the correct gradients." if of.verdict == "CONFORMS" else f"{proven} proven correct."
    if asked := open_cards(of.rows, findings):
        # The cards have the questions.
        about = f"{are_open} ({asked[0].place})" if asked[0].place else are_open
        return f"{about}; {judged}" if of.verdict == "CONFORMS" else f"{plural(len(asked), 'question')}: {about}."
    return f"{judged} Check the open {'rows' if of.open > 1 else 'row'}: {are_open}." if of.open else judged


def counted(row: Row, findings: Findings) -> str:
    """How often the property was as expected, with its unit. A step of all ranks is one step."""
    if row.of in CORE:
        return of_steps(row.proven, row.judged + sum(row.idle.values()), row.ranks)
    ranks, unit = 1 if row.of in _TOGETHER else row.ranks, _UNITS.get(row.of, "step")
    count = row.proven if row.proven % ranks else row.proven // ranks
    every = findings.steps + findings.idle.total()
    if unit != "step" or not count:
        return plural(count, unit) if count else ""
    if count * row.ranks == every:
        return of_steps(every, every, row.ranks)
    is_part = not every % row.ranks and count * row.ranks < every
    return f"checked in {f'{count} of ' if is_part else ''}{plural(every // row.ranks if is_part else count, unit)}"


def open_facts(row: Row, findings: Findings) -> list[str]:
    """Each open fact, its line, in how many steps it was seen, the option that settles it, and what to change
    instead."""
    found = []
    for fact in row.open:
        value, to_fix = fact.shows[1], fixed(fact.says)
        settles = f"; fix: {to_fix}" if to_fix else ""
        settles += f"; if intended: --expect {row.of.value}={value}" if value is not None else ""
        seen = ", ".join(filter(None, [place(fact.site, findings.sources), extent(row, fact)]))
        found.append(f"{sentence(fact.says)}{f' ({seen})' if seen else ''}{settles}")
    return found


def row_texts(row: Row, findings: Findings) -> list[str]:
    """The text of a property's row. A card has the text of a problem, and of a question."""
    if row.state == "WRONG":
        return [plural(len(row.wrong), "problem")]
    asked = len(open_cards([row], findings))
    said = open_facts(replace(row, open=tuple(fact for fact in row.open if not fixed(fact.says))), findings)
    said += [plural(asked, "question")] if asked else []
    others = [sentence(Said(code, {"count": count})) for code, count in row.idle.items() if count]
    if row.because:
        others.append(f"others not judged because of {', '.join(one.value for one in row.because)}")
    count = "; ".join([counted(row, findings), *others])
    return said or [f"{count}: {value(row)}" if row.state == "PROVEN" else count]


def table(of: Outcome, findings: Findings) -> Iterator[tuple[str, str, list[str]]]:
    """Name, state and texts of the rows. After a problem, one row names all that are proven."""
    brief = [row.of.value for row in of.listed if of.causes and row.state == "PROVEN"]
    for row in of.listed:
        if row.of.value not in brief:
            yield row.of.value, row.state, row_texts(row, findings)
    if brief:
        yield "others", "PROVEN", [", ".join(brief)]


def lacks(findings: Findings) -> list[str]:
    """What the watch did not see, besides what the headline says."""
    return [sentence(lack) for lack in findings.lacks[not findings.causes :]]


def lines(findings: Findings, command: Sequence[str] = (), expected: Expected | None = None) -> Iterator[str]:
    """Plain text, each line safe to print."""
    whole, of = digest(findings, command, expected), outcome(findings, expected)
    yield "".join(first_line(whole, command))
    for card in whole.cards:
        yield from ("", *card.lines())
    asked = open_cards(of.rows, findings)
    for card in asked:
        yield from ("", f"question: {visible(one_line(card.headline))}", *[*card.lines()][1:])
    yield from [""] if whole.cards or asked else []
    for name, state, texts in table(of, findings):
        for text in texts:
            yield f"  {name:13} {state:6}  {visible(one_line(text))}"
    yield from (f"  not seen: {visible(one_line(lack))}" for lack in lacks(findings))
