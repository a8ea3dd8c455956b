"""What `--format json` prints. `python -m tools.results_schema` writes a JSON Schema of each document to `schemas`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeAlias

from conformance.laws.law import Law
from conformance.report.command import relative, shown, without_user
from conformance.report.differences import Comparison
from conformance.report.grouping import Failure
from conformance.results.plain import plain
from conformance.results.result_lines import CaseRecord
from conformance.watch.judging.findings import Cause, Findings, Open
from conformance.watch.judging.properties import Property
from conformance.watch.records import Site
from conformance.watch.report.digest import digest
from conformance.watch.report.moments import place
from conformance.watch.report.remedies import fix
from conformance.watch.report.sentences import observed, sentence
from conformance.watch.verdict import Expected, Row, State, Verdict, outcome

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class WatchDocument:
    """The verdict of `conformance watch` on a script."""

    command: Annotated[str, "the command that was watched, without secrets"]
    exit_code: Annotated[int | None, "of that command; 128 + N after signal N; null if unknown"]
    verdict: Verdict
    headline: Annotated[str, "the reason for the verdict, in a sentence"]
    steps: Annotated[int, "judged steps, counted on each rank"]
    properties: Annotated[tuple[WatchedProperty, ...], "one for each property that occurs"]
    problems: Annotated[tuple[WatchProblem, ...], "every violation, the first one first"]
    not_seen: Annotated[tuple[str, ...], "why the watch did not see everything, a sentence each"]


@dataclass(frozen=True)
class WatchedProperty:
    """What the steps show of one property."""

    property: str
    state: State
    expected: Annotated[str, "the value that the watch expects"]
    proven: Annotated[int, "how often the property was as expected"]
    judged: Annotated[int, "how often it was judged"]
    open: Annotated[tuple[OpenFact, ...], "facts that may be intended"]


@dataclass(frozen=True)
class OpenFact:
    """A fact that may be intended."""

    says: Annotated[str, "the fact, in a sentence"]
    count: Annotated[int, "how often it occurred"]
    first_step: Annotated[int | None, "the first step that shows it, from 0; null for the whole run"]
    where: Annotated[str | None, "file and line: `train.py:41`"]
    settled_by: Annotated[str | None, "the value for `--expect` if it is intended: `ranks=sum`"]


@dataclass(frozen=True)
class WatchProblem:
    """A violation of a law at one line."""

    law: Annotated[str, "id of the law"]
    property: str
    title: Annotated[str, "what happened, in a sentence"]
    requires: Annotated[str, "what the law requires"]
    why: str
    effect: Annotated[str | None, "what it does to the update"]
    observed: Annotated[str | None, "how much of each micro-batch a step uses, for some titles"]
    fix: str
    file: Annotated[str | None, "from the current folder"]
    line: int | None
    source: Annotated[str | None, "the text of the line"]
    count: Annotated[int, "how often it occurred"]
    first_step: Annotated[int | None, "the first step that shows it, from 0; null for the whole run"]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class DiffDocument:
    """The differences between two runs. Only cases that ran in both are compared."""

    verdict: Literal["REGRESSION", "NO REGRESSION", "NOTHING COMPARED"]
    compared: Annotated[int, "how many cases ran in both runs"]
    unchanged: Annotated[int, "how many of them have no difference"]
    regressions: Annotated[tuple[Change, ...], "cases that passed and now fail"]
    fixed: Annotated[tuple[Change, ...], "cases that failed and now pass"]
    changed: Annotated[tuple[Change, ...], "cases that fail with another verdict"]
    new: Annotated[tuple[Change, ...], "cases that ran in the second run only"]
    not_compared: Annotated[tuple[Change, ...], "cases that ran in the first run only"]
    new_problems: tuple[RunProblem, ...]
    fixed_problems: tuple[RunProblem, ...]


@dataclass(frozen=True)
class Change:
    """One case in both runs."""

    trainer: str
    id: str
    before: Annotated[str | None, "verdict in the first run; null if the case did not run"]
    after: Annotated[str | None, "verdict in the second run; null if the case did not run"]
    headline: Annotated[str, "the reason for the later verdict, in a sentence"]


@dataclass(frozen=True)
class RunProblem:
    """Why cases of a trainer fail."""

    trainer: str
    verdict: str
    title: Annotated[str, "the problem, in a sentence"]
    cases: Annotated[tuple[str, ...], "ids of the cases that fail because of it"]


@dataclass(frozen=True)
class LawsDocument:
    """Laws: all of them, those of a chapter, or one."""

    laws: tuple[LawEntry, ...]


@dataclass(frozen=True)
class LawEntry:
    """One law."""

    id: str
    command: Annotated[Literal["run", "watch"], "the command that judges it"]
    level: Annotated[Literal["MUST", "SHOULD"], "breaking a MUST fails; breaking a SHOULD is a warning"]
    says: Annotated[str, "the law in a sentence"]
    why: str
    fix: Annotated[str, "correct Python for a law of `run`, else what to do"]
    source: Annotated[str, "the document that states the rule; empty if none does"]
    property: Annotated[str | None, "the property of a law of `watch`"]
    settled_by: Annotated[str | None, "the value for `--expect` if breaking the law is intended"]


Document: TypeAlias = WatchDocument | DiffDocument | LawsDocument
KINDS: dict[str, type[Document]] = {"watch": WatchDocument, "diff": DiffDocument, "laws": LawsDocument}


def in_json(document: Document) -> str:
    kind = next(kind for kind, of in KINDS.items() if isinstance(document, of))
    head: dict[str, Any] = {"kind": kind, "schema": SCHEMA_VERSION, "version": version("trainer-conformance")}
    return json.dumps(head | plain(document), indent=1)


def diff(found: Comparison) -> DiffDocument:
    return DiffDocument(
        verdict="REGRESSION" if found.regressions else "NO REGRESSION" if found.compared else "NOTHING COMPARED",
        compared=found.compared,
        unchanged=found.unchanged,
        regressions=tuple(_change(*pair) for pair in found.regressions),
        fixed=tuple(_change(*pair) for pair in found.fixed),
        changed=tuple(_change(*pair) for pair in found.changed),
        new=tuple(_change(None, case) for case in found.new),
        not_compared=tuple(_change(case, None) for case in found.not_compared),
        new_problems=tuple(map(_run_problem, found.new_problems)),
        fixed_problems=tuple(map(_run_problem, found.fixed_problems)),
    )


def _change(before: CaseRecord | None, after: CaseRecord | None) -> Change:
    last = after or before
    assert last is not None
    was, now = (None if case is None else case.verdict for case in (before, after))
    return Change(last.trainer, last.id, was, now, last.headline)


def _run_problem(problem: Failure) -> RunProblem:
    trainer, ids = problem.example.trainer, tuple(case.id for case in problem.cases)
    return RunProblem(trainer, problem.look.verdict, problem.text, ids)


def laws(found: Iterable[Law]) -> LawsDocument:
    return LawsDocument(tuple(map(_law, found)))


def _law(law: Law) -> LawEntry:
    property, value = law.shows or (None, None)
    return LawEntry(
        id=law.id,
        command="run" if law.needs_plan else "watch",
        level=law.level,
        says=law.says,
        why=law.why,
        fix=law.fix,
        source=law.source,
        property=property,
        settled_by=f"{property}={value}" if property and value else None,
    )


def watch(findings: Findings, command: Sequence[str], expected: Expected, exit_code: int | None) -> WatchDocument:
    of, whole = outcome(findings, expected), digest(findings, command, expected)
    properties = {id(cause): row.of for row in of.rows for cause in row.wrong}
    return WatchDocument(
        command=shown(command),
        exit_code=exit_code,
        verdict=of.verdict,
        headline=whole.summary.detail,
        steps=of.steps,
        properties=tuple(_property(row, findings) for row in of.rows),
        problems=tuple(_problem(cause, properties[id(cause)], findings) for cause in of.causes),
        not_seen=tuple(map(sentence, findings.lacks)),
    )


def _property(row: Row, findings: Findings) -> WatchedProperty:
    facts = tuple(_fact(fact, row.of, findings) for fact in row.open)
    return WatchedProperty(row.of.value, row.state, row.value, row.proven, row.judged, facts)


def _fact(fact: Open, of: Property, findings: Findings) -> OpenFact:
    value, where = fact.shows[1], place(fact.site, findings.sources)
    settled_by = None if value is None else f"{of.value}={value}"
    return OpenFact(sentence(fact.says), fact.count, fact.step, where, settled_by)


def _problem(cause: Cause, of: Property, findings: Findings) -> WatchProblem:
    first = cause.first
    file, line, source = _line(first.site, findings)
    return WatchProblem(
        law=first.law,
        property=of.value,
        title=sentence(first.says),
        requires=first.text.says,
        why=first.text.why,
        effect=None if first.effect is None else sentence(first.effect),
        observed=observed(first.says),
        fix=fix(first, findings),
        file=file,
        line=line,
        source=source,
        count=cause.count,
        first_step=first.step,
        ranks=tuple(sorted(cause.ranks)),
    )


def _line(site: Site, findings: Findings) -> tuple[str | None, int | None, str | None]:
    """The file, the number and the text of a line."""
    if site is None:
        return None, None, None
    path, text = findings.sources.get((site[0], site[1]), (site[0], ""))
    return relative(path), site[1], without_user(text)
