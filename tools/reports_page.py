"""Writes reports/index.html, the tables of docs/findings.md and reports/README.md, and the example of README.md from
the results files.

    python -m tools.reports_page

A finding is a page `reports/findings/NAME.md` and a script `NAME.py`. Three fields follow the title of the page:

- `Report:`, the report that it belongs to
- `State:`, `not reported`, `reported in <URL>` or `fixed in RELEASE`
- `Cases:`, the ids of the cases that fail because of it, with * for any text; left out if none fails
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from textwrap import wrap

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.adapter.declaration import PRECISIONS
from conformance.report.card import card_of
from conformance.report.html import render_html
from conformance.report.verdicts import Look, worst
from conformance.results import Results, read_results
from conformance.results.result_lines import NOT_RUN, PASSED, CaseRecord
from conformance.workloads.behaviour import split
from tools.adapter_remarks import Remark, remarks

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
#: The reference trainers' come first: the others are judged by what they prove.
REFERENCE = ("single", "ddp", "horovod", "point-to-point", "sharded")
BEGIN, END = "<!-- made by tools/reports_page.py -->\n", "<!-- until here -->\n"
#: How the page of a finding starts.
_HEAD = re.compile(
    r"# (?P<title>.+)\n\nReport: (?P<report>[\w-]+)\n"
    r"State: (?:not reported|reported in <(?P<reported>https://\S+)>|fixed in (?P<fixed>[\w.]+))\n"
    r"(?:Cases: (?P<cases>.+)\n)?"
)
#: Entries of a header about the machine, besides versions of frameworks.
_MACHINE = ("python", "platform", "cpus", "numpy")


@dataclass(frozen=True)
class Cell:
    """The judged cases of a backend and a precision."""

    cases: tuple[CaseRecord, ...]

    @property
    def look(self) -> Look:
        return worst(case.verdict for case in self.cases)

    @property
    def glyph(self) -> str:
        """The symbol of the worst verdict; exact and bounded passes share one."""
        return self.look.glyph if self.wrong else "✓"

    @property
    def wrong(self) -> int:
        return sum(case.verdict not in PASSED for case in self.cases)

    @property
    def text(self) -> str:
        return f"{self.wrong} of {len(self.cases)} failed" if self.wrong else str(len(self.cases))


@dataclass(frozen=True)
class Finding:
    """A page about a bug of a framework, with a script that shows it. ``cases``: patterns of ids.

    ``state`` is "not reported", "reported" or "fixed"; ``where`` is the address of the report, or the fixed release.
    """

    name: str
    title: str
    report: str
    cases: tuple[str, ...]
    state: str
    where: str

    @classmethod
    def read(cls, page: Path) -> Finding:
        """Raises ValueError for a page without its head."""
        head = _HEAD.match(page.read_text())
        if head is None:
            raise ValueError(f"{page}: start with a title, an empty line, `Report: NAME` and `State: not reported`")
        cases = tuple((head["cases"] or "").replace(",", " ").split())
        state = next((word for word in ("reported", "fixed") if head[word]), "not reported")
        return cls(page.stem, head["title"], head["report"], cases, state, head["reported"] or head["fixed"] or "")

    def explains(self, case: CaseRecord) -> bool:
        return any(fnmatchcase(case.id, pattern) for pattern in self.cases)


@dataclass(frozen=True)
class Report:
    """A results file, and its findings."""

    name: str
    results: Results
    findings: tuple[Finding, ...]

    @cached_property
    def judged(self) -> tuple[CaseRecord, ...]:
        return tuple(case for case in self.results.cases if case.verdict not in NOT_RUN)

    @property
    def size(self) -> int:
        return len(self.judged)

    @property
    def failed(self) -> tuple[CaseRecord, ...]:
        return tuple(case for case in self.judged if case.verdict not in PASSED)

    def pages(self, case: CaseRecord) -> list[tuple[str, str]]:
        """The title and the address of each finding on a case."""
        return [(one.title, f"findings/{one.name}.md") for one in self.findings if one.explains(case)]

    @property
    def unexplained(self) -> tuple[CaseRecord, ...]:
        """The failing cases that no finding explains."""
        return tuple(case for case in self.failed if not any(one.explains(case) for one in self.findings))

    @property
    def versions(self) -> dict[str, str]:
        """Versions of torch and the frameworks."""
        machine = self.results.header.machine.items()
        return {name: str(of) for name, of in machine if name not in _MACHINE and not str(of).startswith("sha256")}

    @property
    def rows(self) -> dict[str, dict[str, Cell]]:
        """The judged cases by backend and precision."""
        found: dict[str, dict[str, list[CaseRecord]]] = {}
        for case in self.judged:
            found.setdefault(case.backend, {}).setdefault(case.precision, []).append(case)
        return {
            backend: {name: Cell(tuple(cases)) for name, cases in cells.items()} for backend, cells in found.items()
        }

    @property
    def remarks(self) -> list[Remark]:
        """The remarks of the adapter."""
        return remarks(self.name)

    @property
    def behaviour(self) -> dict[str, str]:
        """Its entries in the columns of the behaviour table."""
        done: dict[str, list[str]] = {}
        for case in self.judged:
            for one in case.behaviour:
                choice, way = split(one.way)
                if way not in done.setdefault(choice, []):
                    done[choice].append(way)
        if any(case.backend != "single" and case.accumulation > 1 for case in self.judged):
            done.setdefault("averaging", ["once per window"])
        if any("short" in case.workload for case in self.failed):
            done.setdefault("last_window", ["wrong: see the findings"])
        said = {choice: " or ".join(done[choice]) for choice in COLUMNS if choice in done}
        kinds = {
            "weighted": [case for case in self.judged if "weight" in case.workload],
            "resume": [case for case in self.judged if case.resumed_at is not None],
            "fp16": [case for case in self.judged if case.precision == "fp16"],
        }
        return {**{kind: _passed(cases) for kind, cases in kinds.items()}, **said}


#: The columns of the table of behaviour.
COLUMNS = {
    "last_window": "A short last window",
    "last_batch": "A smaller last batch",
    "schedule_on_skip": "The schedule when a step is skipped",
    "averaging": "Averages over the ranks",
    "weighted": "Weighted losses",
    "resume": "Resume",
    "fp16": "fp16 on a CPU",
}


def _passed(cases: Sequence[CaseRecord]) -> str:
    if not cases:
        return "not supported"
    passed = sum(case.verdict in PASSED for case in cases)
    return "passed" if passed == len(cases) else f"{passed} of {len(cases)} passed"


def reports() -> list[Report]:
    """All published reports, the reference trainers' first."""
    findings = [Finding.read(page) for page in sorted(REPORTS.glob("findings/*.md"))]
    names = sorted(
        (file.stem for file in REPORTS.glob("*.jsonl")),
        key=lambda name: (REFERENCE.index(name) if name in REFERENCE else len(REFERENCE), name),
    )
    return [
        Report(
            name, read_results(REPORTS / f"{name}.jsonl"), tuple(one for one in findings if one.report in (name, "all"))
        )
        for name in names
    ]


def page(found: Sequence[Report]) -> str:
    """The text of reports/index.html."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (ROOT / "conformance" / "report" / "assets" / "report.css").read_text()
    references = [one for one in found if one.name in REFERENCE]
    frameworks = [one for one in found if one not in references]
    every = (cell for of in found for cells in of.rows.values() for cell in cells.values())
    return environment.get_template("reports_page.html.j2").render(
        reports=found,
        frameworks=frameworks,
        references=references,
        columns=COLUMNS,
        precisions=[one for one in PRECISIONS if any(one in cells for of in found for cells in of.rows.values())],
        looks=[*dict.fromkeys(cell.look for cell in every if cell.wrong)],
        style=Markup(style),
    )


def table(found: Sequence[Report]) -> Iterator[str]:
    """The lines of the table of reports/README.md."""
    yield "| Report | Made with | Run | Passed | Failed | Not run |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in found:
        versions = ", ".join(f"{name} {of}" for name, of in one.versions.items())
        counts = len(one.judged), len(one.judged) - len(one.failed), len(one.failed)
        not_run = len(one.results.cases) - len(one.judged)
        yield f"| [{one.name}.html]({one.name}.html) | {versions} | {' | '.join(map(str, counts))} | {not_run} |"


def frameworks_table(found: Sequence[Report]) -> Iterator[str]:
    """The lines of the table of docs/findings.md."""
    yield "| Framework | Run | Passed | Failed | Bugs |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for one in found:
        if one.name not in REFERENCE:
            links = "; ".join(f"[{finding.title}](../reports/findings/{finding.name}.md)" for finding in one.findings)
            counts = len(one.judged), len(one.judged) - len(one.failed), len(one.failed)
            yield f"| {one.name} | {' | '.join(map(str, counts))} | {links or '–'} |"


def example(found: Sequence[Report]) -> Iterator[str]:
    """The lines of README.md that show a bug: Lightning's, in the first case that a law explains."""
    [report] = [one for one in found if one.name == "lightning"]
    [finding] = [one for one in report.findings if one.name == "lightning_nominal_length"]
    cards = (card_of(case) for case in report.failed if finding.explains(case))
    yield f"`conformance run` on Lightning {report.versions['lightning']}:"
    yield ""
    yield "```text"
    card = next(card for card in cards if card.law is not None)
    for line in replace(card, commands=()).lines():
        # As a terminal does.
        yield from wrap(line, 80, break_long_words=False, break_on_hyphens=False) if len(line) > 80 else [line]
    yield "```"


def with_table(text: str, lines: Iterable[str]) -> str:
    """The text of a Markdown page with its generated part, such as a table, updated."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


#: The pages with a generated part, and its generator.
TABLES: dict[Path, Callable[[Sequence[Report]], Iterator[str]]] = {
    ROOT / "README.md": example,
    REPORTS / "README.md": table,
    ROOT / "docs" / "findings.md": frameworks_table,
}


if __name__ == "__main__":
    published = reports()
    for one in published:
        render_html(one.results, REPORTS / f"{one.name}.html", one.pages)
    (REPORTS / "index.html").write_text(page(published))
    for file, lines in TABLES.items():
        file.write_text(with_table(file.read_text(), lines(published)))
