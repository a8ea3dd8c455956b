"""What a watch says, in the model of reports; and as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from conformance.report.command import shown
from conformance.report.digest import Digest
from conformance.report.summary import Summary
from conformance.report.text import one_line, visible
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.laws import LAWS
from conformance.watch.report.card import cards
from conformance.watch.verdict import verdict

_TONES = {"CONFORMS": "good", "DOES NOT CONFORM": "bad", "UNDECIDED": "doubt"}
WAY_OUT = (
    "`conformance init SCRIPT` makes an adapter of the script, with which `conformance run` knows the right answer"
)


def digest(findings: Findings, command: Sequence[str]) -> Digest:
    title, command_line = verdict(findings), shown(command)
    return Digest(
        tool=("trainer-conformance", version("trainer-conformance")),
        command=command_line,
        summary=Summary(title, _steps(findings), _TONES[title]),
        cut_off=None,
        cards=cards(findings, command_line),
        rules={law.id: law.says for law in LAWS.values()},
        unit="Steps",
        tally=[
            ("✓ the gradients used are those computed", findings.conserved),
            ("? not so, or not decided", findings.steps - findings.conserved),
        ],
        extent="; ".join(f"undecided: {reason}" for reason in undecided(findings)) or None,
    )


def _steps(findings: Findings) -> str:
    return (
        f"In {findings.conserved} of {findings.steps} steps, counted on each rank, the gradients used are those that "
        "were computed."
    )


def undecided(findings: Findings) -> list[str]:
    """What could not be seen and why, each with how often."""
    reasons = [f"{why} ({times(count)})" for why, count in findings.open.items()]
    return reasons if findings.steps or reasons else ["no step of a torch optimizer was seen"]


def notes(findings: Findings) -> list[str]:
    return [f"{what} ({times(count)})" for what, count in findings.notes.items()]


def lines(findings: Findings, command: Sequence[str] = ()) -> Iterator[str]:
    """Plain text, each line safe to print."""
    whole = digest(findings, command)
    yield f"{whole.summary.title}: {whole.summary.detail}"
    for card in whole.cards:
        yield ""
        yield from card.lines()
    for title, about in (("Undecided:", undecided(findings)), ("Notes:", notes(findings))):
        if about:
            yield from ("", title, *(f"  {visible(one_line(one))}" for one in about))
    if undecided(findings):
        yield f"  {WAY_OUT}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
