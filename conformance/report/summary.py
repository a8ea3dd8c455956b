"""The verdict on a whole run in a word and a sentence, and its coverage."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.results import Results
from conformance.results.result_lines import NOT_RUN, PASSED, CaseRecord

from .choices_table import warned
from .grouping import Trainer, grouped, trainers
from .text import one_line, plural


@dataclass(frozen=True)
class Summary:
    """title: the verdict. detail: the counts behind it. tone: its colour, as `Look.tone`."""

    title: str
    detail: str
    tone: str


def summary(results: Results) -> Summary:
    """A run conforms only if it is complete, judged something, and found nothing wrong."""
    passed, failed = results.passed, results.failed
    warnings = warned(results)
    detail = _judged(results) + (f" {results.not_run} not run." if results.not_run else "")
    detail += f" {plural(warnings, 'warning')}, under Behaviour." if warnings else ""
    if failed:
        return Summary("DOES NOT CONFORM", detail, "bad")
    if results.cut_off:
        return Summary("UNDECIDED", detail, "doubt")
    if not passed:
        return Summary("UNDECIDED", detail, "doubt")
    return Summary("CONFORMS", detail, "good")


@dataclass(frozen=True)
class Standing:
    """The verdict on one trainer, in words that follow its name, with the counts of its judged cases."""

    trainer: str
    verdict: str
    tone: str
    passed: int
    failed: int


def standings(results: Results) -> list[Standing]:
    """The standing of each trainer, worst first."""
    found = [_standing(trainer, results.cut_off is not None) for trainer in trainers(results)]
    return sorted(found, key=lambda standing: -standing.failed)


def _standing(trainer: Trainer, is_cut_off: bool) -> Standing:
    passed = sum(case.verdict in PASSED for case in trainer.cases)
    failed = sum(case.failed for case in trainer.cases)
    if failed:
        verdict, tone = "does not conform", "bad"
    elif is_cut_off:
        verdict, tone = "is not shown to conform", "doubt"
    elif not passed:
        verdict, tone = "was not judged", "idle"
    else:
        verdict, tone = "conforms", "good"
    return Standing(trainer.name, verdict, tone, passed, failed)


def subject(results: Results) -> str:
    """The file or the name of the only trainer; "" if there are several."""
    if len(found := trainers(results)) != 1:
        return ""
    [trainer] = found
    return one_line(os.path.basename(trainer.target) if trainer.target.endswith(".py") else trainer.name)


def headline(results: Results) -> str:
    """Trainer and verdict: `single conforms`, or `2 of 3 trainers do not conform`."""
    found = standings(results)
    if len(found) == 1:
        return f"{subject(results)} {found[0].verdict}"
    counts = Counter(standing.verdict for standing in found)
    wrong, judged = counts["does not conform"], len(found) - counts["was not judged"]
    if not judged:
        return "Nothing was judged"
    if wrong:
        return f"{wrong} of {judged} trainers {'does' if wrong == 1 else 'do'} not conform"
    if results.cut_off:
        return f"{plural(judged, 'trainer')} {'is' if judged == 1 else 'are'} not shown to conform"
    rest = len(found) - judged
    if not rest:
        return f"All {judged} trainers conform"
    return f"{plural(judged, 'trainer')} {'conforms' if judged == 1 else 'conform'}, {rest} not judged"


def _judged(results: Results) -> str:
    passed, failed = results.passed, results.failed
    judged = passed + failed
    if not judged:
        return "No case ran."
    if not failed:
        return f"All {judged} cases passed." if judged > 1 else "The only case passed."
    wrong = Counter(one_line(case.trainer) for case in results.cases if case.failed)
    names = f" ({', '.join(f'{name} {count}' for name, count in wrong.most_common())})" if len(wrong) > 1 else ""
    return f"{passed} of {plural(judged, 'case')} passed, {failed} failed{names}."


def extent(results: Results) -> str | None:
    """How many supported cases ran on the CPU, and how many did not; None if all ran."""
    ran = [case for case in results.cases if case.device == "cpu" and case.verdict not in NOT_RUN]
    supported = sum({(case.target, case.backend): case.declared for case in ran}.values())
    return f"{len(ran)} run · up to {supported - len(ran)} more with --thorough" if len(ran) < supported else None


def scopes(results: Results) -> list[str]:
    """For each trainer with unsupported cases: how many it supports, and what it does not support."""
    return [
        _scope(name, cases)
        for name, cases in grouped(results.cases, lambda case: case.trainer).items()
        if any(0 < case.declared < case.possible for case in cases)
    ]


def scope(results: Results) -> str | None:
    """The same of all trainers together."""
    every = scopes(results)
    if len(every) < 2:
        return every[0] if every else None
    counts = {(case.target, case.backend): (case.declared, case.possible) for case in results.cases if case.declared}
    supported, possible = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    trainers = len({target for target, _ in counts})
    return f"{trainers} trainers support {supported} of {possible} cases; --verbose lists what they do not support."


def _scope(name: str, cases: Sequence[CaseRecord]) -> str:
    counts = {case.backend: f"{case.declared} of {case.possible} {case.backend} cases" for case in cases}
    values = defaultdict[str, dict[str, None]](dict)
    for case in cases:
        if case.undeclared is not None:
            what, _, value = case.undeclared.rpartition(" ")
            values[what][value] = None
    missing = "; ".join(f"{what} {', '.join(found)}" for what, found in values.items())
    supports = f"{name} supports {' and '.join(counts.values())}"
    return f"{supports}; not supported: {missing}." if missing else f"{supports}."
