"""The verdict over a whole run, in a word and a sentence, and of how much it is one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.results import Results
from conformance.results.records import NOT_RUN, PASSED, CaseRecord

from .behaviour import warned
from .grouping import Trainer, grouped, trainers
from .text import one_line, plural


@dataclass(frozen=True)
class Summary:
    """`title` is the verdict, `detail` the counts behind it, `tone` its colour (as `Look.tone`)."""

    title: str
    detail: str
    tone: str


def summary(results: Results) -> Summary:
    """A run conforms only if it is complete, judged something, and found nothing wrong."""
    passed, failed = results.passed, results.failed
    warnings = warned(results)
    detail = _judged(results) + _not_run(results)
    detail += f" {plural(warnings, 'warning')}, under Behaviour." if warnings else ""
    if failed:
        return Summary("Not conforming", detail, "bad")
    if results.cut_off:
        return Summary("Not shown to conform", detail, "doubt")
    if not passed:
        return Summary("Nothing was judged", detail, "doubt")
    return Summary("Conforming", detail, "good")


@dataclass(frozen=True)
class Standing:
    """What a run says of one trainer: ``verdict`` in words that follow its name, and the judged cases behind it."""

    trainer: str
    verdict: str
    tone: str
    held: int
    failed: int


def standings(results: Results) -> list[Standing]:
    """Each trainer's, those that do not conform first."""
    found = [_standing(trainer, results.cut_off is not None) for trainer in trainers(results)]
    return sorted(found, key=lambda standing: -standing.failed)


def _standing(trainer: Trainer, is_cut_off: bool) -> Standing:
    held = sum(case.verdict in PASSED for case in trainer.cases)
    failed = sum(case.failed for case in trainer.cases)
    if failed:
        verdict, tone = "does not conform", "bad"
    elif is_cut_off:
        verdict, tone = "is not shown to conform", "doubt"
    elif not held:
        verdict, tone = "was not judged", "idle"
    else:
        verdict, tone = "conforms", "good"
    return Standing(trainer.name, verdict, tone, held, failed)


def headline(results: Results) -> str:
    """Which trainer, and does it conform: `single conforms`, or `2 of 3 trainers do not conform`."""
    found = standings(results)
    if len(found) == 1:
        return f"{one_line(found[0].trainer)} {found[0].verdict}"
    counts = Counter(standing.verdict for standing in found)
    wrong, judged = counts["does not conform"], len(found) - counts["was not judged"]
    if not judged:
        return "Nothing was judged"
    if wrong == judged > 1:
        return f"None of {judged} trainers conforms"
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
        return f"All {judged} judged cases hold." if judged > 1 else "The one judged case holds."
    wrong = Counter(one_line(case.trainer) for case in results.cases if case.failed)
    names = ", ".join(f"{name} {count}" if len(wrong) > 1 else name for name, count in wrong.most_common())
    hold = "holds" if passed == 1 or judged == 1 else "hold"
    do = "does" if failed == 1 else "do"
    return f"{passed} of {plural(judged, 'judged case')} {hold}, {failed} {do} not ({names})."


def _not_run(results: Results) -> str:
    count = results.not_run
    more = " more" if results.passed + results.failed else ""
    proves = "was not run and proves" if count == 1 else "were not run and prove"
    return f" {count}{more} {proves} nothing." if count else ""


def extent(results: Results, *, briefly: bool = False) -> str | None:
    """How many of the cases that the trainers declare ran on the CPU, and how a run chooses; None if all ran."""
    ran = [case for case in results.cases if case.device == "cpu" and case.verdict not in NOT_RUN]
    declared = sum({(case.target, case.backend): case.declared for case in ran}.values())
    if len(ran) >= declared:
        return None
    if briefly:
        return f"{len(ran)} of the {plural(declared, 'case')} that can be run; --thorough runs more, --case any."
    return (
        f"{len(ran)} of the {plural(declared, 'case')} that can be run. A run chooses them so that each path is there "
        "in each precision, and each workload with each of its world sizes, accumulations and precisions; `--thorough` "
        "runs more, so that any three of these meet, and `--case` runs any."
    )


def scopes(results: Results) -> list[str]:
    """For each trainer that does not declare everything, how many of the cases that it could have it declares, and
    what it does not declare: a sentence."""
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
    declared, possible = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    trainers = len({target for target, _ in counts})
    return (
        f"The {trainers} trainers declare {declared} of the {possible} cases that they could have on their backends; "
        "--verbose lists what each does not declare."
    )


def _scope(name: str, cases: Sequence[CaseRecord]) -> str:
    counts = {
        case.backend: f"{case.declared} of the {case.possible} cases that a {case.backend} trainer can have"
        for case in cases
    }
    values = defaultdict[str, dict[str, None]](dict)
    for case in cases:
        if case.undeclared is not None:
            what, _, value = case.undeclared.rpartition(" ")
            values[what][value] = None
    undeclared = "; ".join(f"{what} {', '.join(found)}" for what, found in values.items())
    declares = f"{name} declares {' and '.join(counts.values())}"
    return f"{declares}; not declared: {undeclared}." if undeclared else f"{declares}."
