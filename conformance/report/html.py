"""Renders results as one self-contained HTML page.

The page fetches nothing, and cannot: its policy allows only its own style and script, by their hashes. All text is
escaped, and invisible characters that have an effect are made visible first.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from conformance.results import Results, ResultsError
from conformance.results.result_lines import CaseRecord
from conformance.trace.short_texts import size
from conformance.workloads.behaviour import WORDS

from . import excerpts, figure, grouping, swimlanes, text
from .card import CaseCard, cards
from .choices_table import behaviour
from .differences import Comparison
from .laws import breaches, checked, fault_of, page_of, unchecked
from .summary import extent, headline, scopes, standings, summary
from .text import write
from .traffic_table import traffic
from .verdicts import LOOKS, SHOWN

Pages: TypeAlias = Callable[[CaseRecord], Iterable[tuple[str, str]]]
"""The titles and addresses of the pages about a case that fails."""

#: The page on the workloads.
WORKLOADS = "https://github.com/trainer-conformance/trainer-conformance/blob/main/docs/WORKLOADS.md"


def render_html(results: Results, path: str | Path, pages: Pages = lambda case: ()) -> None:
    """Writes the report of `results` to `path`. Raises `ResultsError` if that fails."""
    _write(base().get_template("report.html.j2").render(_view(results), pages_of=pages), path)


def render_comparison(comparison: Comparison, old: Results, new: Results, path: str | Path) -> None:
    """Writes a page of the differences between two runs to `path`. Raises `ResultsError` if that fails."""
    template = base().get_template("comparison.html.j2")
    _write(template.render(comparison=comparison, old=old, new=new), path)


def _write(page: str, path: str | Path) -> None:
    try:
        write(Path(path), page)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from error


def base(package: str = "conformance.report") -> Environment:
    """The environment of all pages. package: has templates, in addition to those of reports."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("conformance.report")]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("report.css"), _asset("report.js")
    environment.globals.update(
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        # Each figure is drawn once, in a `<symbol>` with this id: all layouts of a workload have one trajectory.
        drawings=dict[Markup, str](),
        figure_size=(figure.WIDTH, figure.HEIGHT),
        swimlanes=swimlanes,
        looks=LOOKS,
        page_of=page_of,
        fault_of=fault_of,
    )
    environment.filters.update(
        prose=_prose,
        number=text.number,
        size=size,
        duration=text.duration,
        plural=text.plural,
        runs=text.runs,
        file=lambda where: where.rpartition("/")[2],
    )
    return environment


def _view(results: Results) -> dict[str, Any]:
    """The variables of the templates of a run."""
    found = cards(results)
    numbers: dict[int, list[int]] = defaultdict(list)
    for number, card in enumerate(found, start=1):
        for case in card.cases:
            numbers[id(case)].append(number)

    def problems_of(case: CaseRecord) -> Sequence[int]:
        """The numbers of the cards of a case."""
        return numbers.get(id(case), ())

    examples = {id(case): None for card in found for case in card.cases[:_IN_FULL]}
    return {
        "results": results,
        "headline": headline(results),
        "standings": standings(results),
        "summary": summary(results),
        "behaviour": behaviour(results),
        "scopes": scopes(results),
        "extent": extent(results),
        "overall": grouping.overall(results),
        "precisions": grouping.precisions(results),
        "trainers": grouping.trainers(results),
        "reasons": grouping.reasons(results),
        "tally": grouping.tally,
        "checked_laws": checked(results),
        "unchecked_laws": unchecked(results),
        "warnings": breaches(results, "SHOULD"),
        "traffic": traffic(results),
        "cards": found,
        "problems_of": problems_of,
        "example_of": lambda case: None if id(case) in examples else _example(problems_of(case), found),
        "fixes_of": lambda case: [found[number - 1].fix for number in problems_of(case)],
        "filters": _filters(results, found),
        "anchor": _anchors(results),
        "evidence": excerpts,
        "figure": figure,
        "shown_looks": SHOWN,
        "ways": WORDS,
        "workloads": WORKLOADS,
        "distinct": text.distinct,
    }


#: How many cases of a problem have figures, timeline and evidence on the page.
_IN_FULL = 3


def _example(problems: Sequence[int], found: Sequence[CaseCard]) -> CaseRecord | None:
    """A case of the same first problem that the page shows in full."""
    return found[problems[0] - 1].cases[0] if problems else None


def _filters(results: Results, found: Sequence[CaseCard]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The filters of cases: name in the address, label, and the values with their texts."""
    rows = [(trainer.name, path.name) for trainer in grouping.trainers(results) for path in trainer.paths]
    named = {"trainer": [trainer for trainer, _ in rows], "path": [path for _, path in rows]}
    named["precision"] = grouping.precisions(results)
    named["workload"] = sorted({case.workload for case in results.cases})
    named["law"] = sorted({finding.law for case in results.cases for finding in case.findings})
    plain = [(name, name.capitalize(), [(value, value) for value in dict.fromkeys(named[name])]) for name in named]
    verdicts = [(look.key, look.verdict) for look, _ in grouping.overall(results)]
    problems = [(str(number), f"{number}: {card.headline[:60]}") for number, card in enumerate(found, start=1)]
    offered = [("verdict", "Verdict", verdicts), *plain, ("problem", "Problem", problems)]
    return [one for one in offered if len(one[2]) > 1 or (one[0] in ("problem", "law") and one[2])]


def _shown(value: object) -> object:
    """The value of an expression on the page. `Markup` is ours; all other text is untrusted."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _prose(value: str) -> Markup:
    """A sentence of ours with code between backticks, which may quote a trainer."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text.visible(value)))))


def _asset(name: str) -> str:
    return (files("conformance.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def framed(page: str) -> str:
    """A page as part of another one, such as a notebook."""
    return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 40em; border: 0"></iframe>'


def _anchors(results: Results) -> Callable[..., str]:
    """A function for the unique id of a case, or of the names of a group of cases."""
    taken: dict[str, object] = {}
    cases: dict[int, str] = {}

    def slug(*names: str) -> str:
        return "/".join(re.sub(r"[^A-Za-z0-9._-]+", "-", name) for name in names)

    for case in results.cases:
        name = base = slug(case.trainer, case.id)
        copies = 1
        while name in taken:
            copies += 1
            name = f"{base}~{copies}"
        taken[name] = cases[id(case)] = name

    def anchor(what: CaseRecord | str, *names: str) -> str:
        return cases[id(what)] if isinstance(what, CaseRecord) else "at/" + slug(what, *names)

    return anchor
