"""Why the cases of one trainer failed: as few causes as explain all failures.

A known bug is named only if it makes the numbers of every case in which it would show, and no other one does too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conformance.results.records import PAIR, CaseRecord, Finding

from .factors import factors

Kind: TypeAlias = Literal["setup", "ending", "law", "guard", "bug", "factor", "factors", "reason", "unknown"]

#: A law that compares numbers. At some layouts several mistakes make the same ones, so it is no cause.
_NUMERIC_LAWS = ("acc/averaged-once",)

#: Laws of what comes of a mistake, whichever it is: a known bug that makes the numbers says more.
_OF_EFFECTS = ("ddp/identical-weights",)

#: The chapters of laws that only some precisions can break.
_OF_PRECISION = ("amp/", "apex/")


@dataclass(frozen=True)
class Cause:
    """What is true of all its cases. ``key`` tells it from the others of its kind. ``bugs``: known ones that would make
    it."""

    kind: Kind
    key: str
    bugs: tuple[str, ...] = ()


def causes(cases: Sequence[CaseRecord]) -> list[tuple[Cause, list[CaseRecord]]]:
    """The failed cases of one trainer by cause. The cause of the most cases takes them first; the more direct evidence
    wins a tie, and nothing is left over."""
    failed = [case for case in cases if case.failed]
    bugs = _bugs(cases)
    constant = _factors(cases)
    innocent = _innocent(failed)
    open_cases = list(failed)
    found: list[tuple[Cause, list[CaseRecord]]] = []
    while open_cases:
        groups = defaultdict[Cause, list[CaseRecord]](list)
        for case in open_cases:
            for cause in dict.fromkeys(_of(case, bugs, constant, innocent)):
                groups[cause].append(case)
        cause = max(groups, key=lambda one: (one.kind != "unknown", len(groups[one]), -_rank(one)))
        found.append((cause, groups[cause]))
        taken = {id(case) for case in groups[cause]}
        open_cases = [case for case in open_cases if id(case) not in taken]
    return found


#: The most direct evidence first. A constant factor is what was seen; that a bug makes it is a conclusion.
_ORDER: tuple[Kind, ...] = ("setup", "ending", "law", "guard", "factor", "bug", "factors", "reason", "unknown")


def _rank(cause: Cause) -> float:
    """The place in `_ORDER`. A pair of bugs comes after factors: there are so many that one may fit by chance."""
    if cause.kind == "law" and cause.key.startswith(_OF_EFFECTS):
        return _ORDER.index("bug") + 0.5
    is_pair = cause.kind == "bug" and PAIR in cause.key
    return _ORDER.index("factors") + 0.5 if is_pair else _ORDER.index(cause.kind)


def title(cause: Cause, cases: Sequence[CaseRecord], texts: Mapping[str, str]) -> str:
    """The cause in a sentence. ``texts`` are those of the known bugs by name."""
    example = cases[0]
    if cause.kind == "law":
        return f"{_law(example, cause).says} ({cause.key.partition('@')[0]})"
    if cause.kind == "bug":
        names = [name for name in cause.key.split(_OR) if name]
        said = [" and ".join(texts.get(one, one) for one in name.split(PAIR)) for name in names]
        if len(said) == 1:
            return f"The trainer {said[0]}."
        return f"The trainer {', or '.join(said[:3])}, or something else that makes the same numbers here."
    if cause.kind in ("factor", "factors"):
        known = ", or ".join(texts.get(name, name) for name in cause.bugs[:3])
        return cause.key + (f" A trainer that {known} would do that, and these cases cannot tell." if known else "")
    if cause.kind == "unknown":
        return "The numbers are wrong, and no known bug makes them in every case in which it would show."
    return example.headline


def law_of(cause: Cause, case: CaseRecord) -> Finding | None:
    """The broken law that is the cause."""
    return _law(case, cause) if cause.kind == "law" else None


def telling(cause: Cause, case: CaseRecord) -> list[Finding]:
    """The broken laws that tell more of the cause, the law that is the cause first."""
    law = law_of(cause, case)
    is_open = cause.kind in ("factor", "factors", "unknown")
    # What is a warning in right runs, too, has its own place.
    broken = [
        finding
        for finding in case.findings
        if finding is not law and finding.level == "MUST" and not (is_open and finding.law in _NUMERIC_LAWS)
    ]
    return broken if law is None else [law, *broken]


def _of(
    case: CaseRecord, bugs: Mapping[int, str], constant: Mapping[int, list[Cause]], innocent: frozenset[str]
) -> Iterator[Cause]:
    """What a failed case may be caused by."""
    if case.mistake is not None:
        yield Cause("setup", case.mistake)
        return
    if case.verdict == "INCONCLUSIVE":
        # Nothing is proved, so nothing is a cause.
        yield Cause("reason", _without_numbers(case.headline))
        return
    for finding in case.findings:
        if finding.level == "MUST" and finding.law not in (*_NUMERIC_LAWS, *innocent):
            yield Cause("law", _broken(finding))
    broken = next((guard.name for guard in case.guards if not guard.holds), None)
    if broken is not None:
        yield Cause("guard", broken)
    if id(case) in bugs:
        yield Cause("bug", bugs[id(case)])
    yield from constant.get(id(case), ())
    if case.first_difference is not None or case.diverged is not None:
        yield Cause("unknown", "")
    else:
        kind: Kind = "ending" if case.verdict in ("CRASH", "HANG") else "reason"
        yield Cause(
            kind, f"{case.verdict}: {_words(case.headline) if kind == 'ending' else _without_numbers(case.headline)}"
        )


def _innocent(failed: Sequence[CaseRecord]) -> frozenset[str]:
    """The broken laws on precision that are not the cause: in another one they hold, and the same numbers go wrong."""
    alike = defaultdict[object, list[frozenset[str]]](list)
    for case in failed:
        if case.mistake is None and case.first_difference is not None:
            broken = frozenset(finding.law for finding in case.findings if finding.law.startswith(_OF_PRECISION))
            alike[case.workload, case.path, case.first_difference].append(broken)
    return frozenset(
        law for broken in alike.values() for law in broken[0].union(*broken) - broken[0].intersection(*broken)
    )


def _law(case: CaseRecord, cause: Cause) -> Finding:
    return next(finding for finding in case.findings if _broken(finding) == cause.key)


def _broken(finding: Finding) -> str:
    """The law, and the line of the trainer: a framework that breaks it in several lines of its own may do it for one
    reason, such as a window that it does not know."""
    return f"{finding.law}@{(finding.where or '').rpartition('called from ')[2]}"


_OR = " | "


def _bugs(cases: Sequence[CaseRecord]) -> dict[int, str]:
    """The known bug of each case that has one, or several that these cases cannot tell apart."""
    tested = [case for case in cases if case.mistake is None and (case.explained_by or case.ruled_out)]
    names = dict.fromkeys(name for case in tested for name in case.explained_by)
    explained = {
        name: [case for case in tested if _explains(case, name)]
        for name in names
        if not any(_speaks_against(case, name) for case in tested)
    }
    # Where clipping or a wide bound hides factors, too many trainers make the same numbers.
    explained = {name: one for name, one in explained.items() if any(len(case.gradient_factors) < 2 for case in one)}
    found: dict[int, str] = {}
    while explained:
        most = max(map(len, explained.values()))
        best = [name for name in explained if len(explained[name]) == most]
        first = explained[best[0]]
        alike = [name for name in best if [*map(id, explained[name])] == [*map(id, first)]]
        # A single bug is the simpler explanation.
        alike = [name for name in alike if PAIR not in name] or alike
        found.update(dict.fromkeys(map(id, first), _OR.join(alike)))
        left = {name: [case for case in one if id(case) not in found] for name, one in explained.items()}
        explained = {name: one for name, one in left.items() if one}
    return found


def _explains(case: CaseRecord, name: str) -> bool:
    """Whether the bug makes the numbers of this case; of a pair, the one that can be in it."""
    return name in case.explained_by or (len(shown := _shown(case, name)) == 1 and shown[0] in case.explained_by)


def _speaks_against(case: CaseRecord, name: str) -> bool:
    """Whether the bug, or the pair of bugs, would show in this case and make other numbers. Where the ranks have come
    apart there is another bug, which does."""
    return case.diverged is None and not _explains(case, name) and bool(_shown(case, name))


def _shown(case: CaseRecord, name: str) -> list[str]:
    """Those of a pair of bugs that would show in this case."""
    return [one for one in name.split(PAIR) if one in case.explained_by or one in case.ruled_out]


def _factors(cases: Sequence[CaseRecord]) -> dict[int, list[Cause]]:
    """The constant factors that explain each case. A bug that explains as many cases as one that depends on the layout
    says why it does."""
    found = defaultdict[int, list[Cause]](list)
    for factor in factors(cases):
        known = _common_bugs(factor.cases, cases)
        cause = Cause("factor" if factor.is_constant else "factors", factor.text, known)
        for case in factor.cases:
            found[id(case)].append(cause)
    return found


def _common_bugs(some: Sequence[CaseRecord], cases: Sequence[CaseRecord]) -> tuple[str, ...]:
    """The known bugs that make the numbers of ``some`` cases, and against which no other one speaks."""
    names = (name for name in some[0].explained_by if all(name in case.explained_by for case in some))
    return tuple(name for name in names if PAIR not in name and not any(_speaks_against(case, name) for case in cases))


def _words(text: str) -> str:
    """The words in the text, in no order: which rank raises first, and tells of another one, is a race."""
    return " ".join(sorted({word.strip("#()[].,;:'\"") for word in _without_numbers(text).split()}))


def _without_numbers(text: str) -> str:
    """The text with all numbers alike, but those of lines."""
    return re.sub(r"(?<![:\w.-])-?\d[\w.+-]*", "#", text)
