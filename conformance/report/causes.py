"""Finds the fewest causes that explain all failures of one trainer, each with every case that shows it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from conformance.results.result_lines import ONLY, PAIR, CaseRecord, Finding, Reason

from .laws import fault_of, some_ranks
from .signs import CUT_SHORT, KINDS, NUMERIC_LAWS, OR, Cause, key_of, signs
from .text import capitalized, cut, one_line

#: Laws that flag consequences, not causes: a known bug says more.
_OF_EFFECTS = ("ddp/identical-weights",)

#: Laws and guards that break together with another one: a schedule is compared with the optimizer's steps or the
#: planned epochs, a rank that skips alone takes no step, and one that unscales before the sum misses overflows.
_FOLLOW = {
    "resumes at another place in the data": ("acc/schedule-per-epoch",),
    "acc/step-after-all-backwards": ("acc/schedule-per-step", "acc/schedule-per-epoch"),
    "amp/all-ranks-skip": ("acc/step-after-all-backwards",),
    "amp/unscale-after-sync": ("overflows are skipped", "amp/all-ranks-skip"),
}

#: Kinds of cause that explain nothing.
_NOTHING_KNOWN = ("reason", "unknown")

#: The longest title, in characters.
_LONGEST = 160

#: Guards that say where numbers are wrong, not why.
_WHERE_WRONG = ("each parameter", "gradients of each window", "steps undone")


def causes(cases: Sequence[CaseRecord]) -> list[tuple[Cause, list[CaseRecord]]]:
    """The causes of the failed cases of one trainer, each with all cases that show it. A case may have several.

    The cause of the most cases comes first; the more direct evidence wins a tie. Then come further broken laws, and the
    second of two bugs that give the numbers together.
    """
    failed = [case for case in cases if case.failed]
    found = {name: [*_without_following(own)] for name, own in signs(failed, cases).items()}
    shown = _with_reasons(_with_first_bugs(failed, found))
    chosen = _fewest(failed, shown)
    for case in failed:
        chosen += dict.fromkeys(one for one in _further(shown[id(case)], chosen) if one not in chosen)
    own = {id(case): _own(shown[id(case)], chosen) for case in failed}
    return [(cause, [case for case in failed if cause in own[id(case)]]) for cause in chosen]


def _with_reasons(shown: Mapping[int, Sequence[Cause]]) -> dict[int, Sequence[Cause]]:
    """The causes of each case. A law that only flags a consequence has the one cause that explains it elsewhere."""
    reasons = defaultdict[Cause, dict[Cause, None]](dict)
    for causes in shown.values():
        for effect in filter(_is_effect, causes):
            reasons[effect] |= dict.fromkeys(one for one in causes if not _gives_way(one))

    def explained(causes: Sequence[Cause]) -> Sequence[Cause]:
        if not all(_is_effect(one) or one.kind in _NOTHING_KNOWN for one in causes):
            return causes
        found = dict.fromkeys(reason for effect in filter(_is_effect, causes) for reason in reasons[effect])
        return [*found, *causes] if len(found) == 1 else causes

    return {name: explained(causes) for name, causes in shown.items()}


def _with_first_bugs(failed: Sequence[CaseRecord], shown: Mapping[int, Sequence[Cause]]) -> dict[int, Sequence[Cause]]:
    """The causes of each case. One that nothing explains has the one bug that explains the same first wrong number of
    its workload elsewhere: a second bug, such as one of the resume, changes later numbers only."""
    known = defaultdict[object, dict[Cause, None]](dict)
    for case in failed:
        known[_first_wrong(case)] |= {cause: None for cause in shown[id(case)] if cause.kind == "bug"}

    def explained(case: CaseRecord) -> Sequence[Cause]:
        own, found = shown[id(case)], known[_first_wrong(case)]
        is_open = case.first_difference and not case.diverged and all(one.kind in _NOTHING_KNOWN for one in own)
        return [*found, *own] if is_open and len(found) == 1 else own

    return {id(case): explained(case) for case in failed}


def _first_wrong(case: CaseRecord) -> object:
    first = case.first_difference
    return case.workload, first and (first.step, first.quantity, first.parameter, first.expected, first.observed)


def _is_effect(cause: Cause) -> bool:
    return cause.kind == "law" and cause.key.startswith(_OF_EFFECTS)


def _says_what(cause: Cause) -> bool:
    """Whether it is a law or a guard that says what happened."""
    return _is_effect(cause) or cause.key in _WHERE_WRONG


def _fewest(failed: Sequence[CaseRecord], shown: Mapping[int, Sequence[Cause]]) -> list[Cause]:
    harmless = {cause for case in failed if case.verdict == "FAIL (law)" for cause in shown[id(case)]}
    explaining = {id(case): _explaining(case, shown[id(case)], harmless) for case in failed}
    chosen, left = list[Cause](), list(failed)
    while left:
        counts = Counter(cause for case in left for cause in explaining[id(case)])
        known = {one: (one.kind not in _NOTHING_KNOWN, not _says_what(one)) for one in counts}
        cause = max(counts, key=lambda one: (*known[one], counts[one], -_rank(one)))
        chosen.append(cause)
        left = [case for case in left if cause not in explaining[id(case)]]
    return chosen


def _explaining(case: CaseRecord, shown: Sequence[Cause], harmless: set[Cause]) -> Sequence[Cause]:
    """The causes that can explain a case. A law that other cases break with correct numbers explains no wrong numbers
    if anything else does."""
    if case.verdict != "FAIL (law)" and any(
        one.kind in ("guard", "bug", "pair") and not _gives_way(one) for one in shown
    ):
        return [cause for cause in shown if cause not in harmless]
    return shown


def _further(shown: Sequence[Cause], chosen: Sequence[Cause]) -> Iterator[Cause]:
    """The causes of a case that the ``chosen`` ones do not explain."""
    own = [cause for cause in shown if cause in chosen]
    # A guard may explain a broken law or a crash, and a broken law may explain the numbers.
    if all(cause.kind == "law" for cause in own):
        yield from (cause for cause in shown if cause.kind == "law" and not _gives_way(cause))
    both = [cause for cause in shown if cause.kind == "pair"]
    if any(cause in both for cause in own) and len([cause for cause in own if not _gives_way(cause)]) < len(both):
        yield from both


def _following(cause: Cause) -> Sequence[str]:
    """The laws and guards that break together with a cause."""
    return _FOLLOW.get(cause.key.partition("@")[0], ())


def _without_following(shown: Sequence[Cause]) -> Iterator[Cause]:
    follow = {law for cause in shown for law in _following(cause)}
    yield from (cause for cause in shown if cause.key.partition("@")[0] not in follow)


def _own(shown: Sequence[Cause], chosen: Sequence[Cause]) -> list[Cause]:
    """The ``chosen`` causes that a case shows, without those that any other one explains."""
    found = [cause for cause in chosen if cause in shown]
    return [cause for cause in found if not _gives_way(cause)] or found[:1]


def _gives_way(cause: Cause) -> bool:
    """Whether it says what happened, not why."""
    if cause.kind in ("factor", "factors", "precision", *_NOTHING_KNOWN):
        return True
    return _says_what(cause)


def _rank(cause: Cause) -> float:
    """The position in `KINDS`."""
    order = list(KINDS)
    return order.index("bug") + 0.5 if _is_effect(cause) else order.index(cause.kind)


def title(
    cause: Cause, cases: Sequence[CaseRecord], texts: Mapping[str, str], explaining: Sequence[Finding] = ()
) -> str:
    """The cause in a sentence. ``texts``: what a trainer with each known bug does. ``explaining``: the broken laws that
    explain the first case, as from `telling`."""
    if cause.kind == "law":
        broken, on = next((law, some_ranks(law, case)) for case in cases if (law := law_of(cause, case)) is not None)
        return f"{f'{capitalized(on)}, the' if on else 'The'} trainer {fault_of(broken)}."
    if cause.kind in ("bug", "pair"):
        name, *others = filter(None, cause.key.split(OR))
        return f"The trainer {'probably ' if others else ''}{doing(name, texts)}."
    if cause.kind in ("factor", "factors", "precision"):
        return cause.key
    if cause.kind == "unknown":
        return "Wrong numbers that no known bug explains."
    if cause.key == CUT_SHORT:
        return "Killed while saving, the trainer cannot resume from an earlier checkpoint."
    headline = cases[0].headline
    if crashed := _crashed(cases[0], explaining):
        return crashed
    if cause.kind != "ending" or len(headline) <= _LONGEST:
        return headline
    # An error message can be long; the card has the rest.
    first, *_ = re.split(r"(?<=[.!?]) ", headline, maxsplit=1)
    return cut(first, _LONGEST)


def _crashed(case: CaseRecord, explaining: Sequence[Finding]) -> str:
    """At which statement the trainer crashes, and the law that it breaks there; "" if unknown, or for a `raise`, which
    has the trainer's own words."""
    reason = case.reason or Reason()
    kind, statement = reason.code.partition("raised ")[2], one_line("".join(reason.source[:1]).strip())
    if case.verdict != "CRASH" or not kind or not statement or statement.startswith("raise "):
        return ""
    does = next((f"{fault_of(law)}, and " for law in explaining if law.where in (None, reason.where)), "")
    return f"The trainer {does}crashes at `{cut(statement, _LONGEST // 2)}`: {kind}"


def doing(name: str, texts: Mapping[str, str]) -> str:
    """What a trainer with a known bug, or a pair, does. ``texts``: by known bug."""
    return " and ".join(_said(one, texts) for one in name.split(PAIR))


def _said(name: str, texts: Mapping[str, str]) -> str:
    bug, only, place = name.partition(ONLY)
    return texts.get(bug, bug) + (f", but only {place}" if only else "")


def law_of(cause: Cause, case: CaseRecord) -> Finding | None:
    """The broken law that is the cause, if the case shows it."""
    if cause.kind != "law":
        return None
    own = [finding for key in (cause.key, *cause.same) for finding in case.findings if key_of(finding) == key]
    return next(iter(own), None)


def telling(cause: Cause, case: CaseRecord, others: Sequence[Cause] = ()) -> list[Finding]:
    """The broken laws that explain the cause, first the law that is the cause. ``others``: the case's other causes;
    their laws explain nothing here."""
    law = law_of(cause, case)
    is_open = cause.kind in ("factor", "factors", "unknown")
    elsewhere = {key for other in others if other.kind == "law" for key in (other.key, *other.same)}
    # Warnings have their own section.
    broken = [
        finding
        for finding in case.findings
        if finding is not law
        and finding.level == "MUST"
        and key_of(finding) not in elsewhere
        and finding.law not in _following(cause)
        and not (is_open and finding.law in NUMERIC_LAWS)
    ]
    return broken if law is None else [law, *broken]
