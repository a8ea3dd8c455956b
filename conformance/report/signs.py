"""Finds the possible causes of each failed case, from it and from the other cases of its trainer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import isfinite
from typing import Literal, TypeAlias

from conformance.oracle.faults import RARE
from conformance.results.result_lines import ONLY, PAIR, PASSED, CaseRecord, Finding

from .factors import factors

Kind: TypeAlias = Literal[
    "setup", "ending", "law", "guard", "bug", "pair", "factor", "factors", "precision", "reason", "unknown"
]

#: The text of each kind of cause, the most direct evidence first. A factor is an observation, and a bug that explains
#: it a conclusion. There are so many pairs of bugs that one can fit by chance.
KINDS: dict[str, str] = {
    "setup": "The adapter does not train what the case asks for.",
    "ending": "The case crashed or hung.",
    "law": "A law is broken.",
    "guard": "A guard failed: the numbers mean nothing.",
    "factor": "Gradients or learning rates are wrong by a factor.",
    "bug": "A known bug gives these numbers.",
    "precision": "The numbers have a lower precision.",
    "factors": "Gradients or learning rates are wrong by factors.",
    "pair": "Two known bugs together give these numbers.",
    "reason": "Nothing can be concluded.",
    "unknown": "The numbers are wrong.",
}

#: A law that compares numbers. At some layouts several bugs give the same ones, so it is no cause.
NUMERIC_LAWS = ("acc/averaged-once",)

#: The chapters of laws for some precisions only.
_OF_PRECISION = ("amp/", "apex/")

_SINGLE_PRECISION = (
    "The numbers have the precision of float32 instead of float64: something is rounded, such as outputs, targets, the "
    "loss or the learning rate."
)

#: A partly saved checkpoint can lack anything, so these crashes differ in words.
CUT_SHORT = "CRASH once a checkpoint was cut short"


@dataclass(frozen=True)
class Cause:
    """A cause of cases. ``key``: identifies it in its kind; a pair is two known bugs at once, or one of them. ``bugs``:
    known bugs that explain it. ``same``: the keys of laws that the same bug breaks."""

    kind: Kind
    key: str
    bugs: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


def signs(failed: Sequence[CaseRecord], cases: Sequence[CaseRecord]) -> dict[int, list[Cause]]:
    """The possible causes of each failed case, by its id(), the most direct first. ``cases``: all of a trainer."""
    known, innocent = bugs(cases), _innocent(failed)
    constant = _factors(cases, known)
    cut_short = _only_cut_short(failed)
    pairs = {name for names in known.values() for name in names if len(names) > 1 or PAIR in name}
    found = {case: [Cause("pair" if one in pairs else "bug", one) for one in names] for case, names in known.items()}
    shown = {
        id(case): [*_of(case, found.get(id(case), ()), constant.get(id(case), ()), innocent, cut_short)]
        for case in failed
    }
    mistakes = _mistakes(failed, shown)
    shown = {name: list(dict.fromkeys(mistakes.get(one, one) for one in found)) for name, found in shown.items()}
    laws = _laws_of_bugs(failed, shown)
    return {id(case): [*_with_law(case, shown[id(case)], laws)] for case in failed}


def _of(
    case: CaseRecord,
    bugs: Sequence[Cause],
    constant: Sequence[Cause],
    innocent: frozenset[str],
    cut_short: frozenset[str],
) -> Iterator[Cause]:
    if case.mistake is not None:
        yield Cause("setup", case.mistake)
        return
    if case.verdict == "INCONCLUSIVE":
        # Nothing is proven, so nothing is a cause.
        yield Cause("reason", _reason(case))
        return
    for finding in case.findings:
        if finding.level == "MUST" and finding.law not in (*NUMERIC_LAWS, *innocent):
            yield Cause("law", key_of(finding))
    broken = next((guard for guard in case.guards if not guard.holds), None)
    if broken is not None:
        yield Cause("guard", broken.diagnosis or broken.name)
    yield from bugs
    yield from constant
    if of_single_precision(case):
        yield Cause("precision", _SINGLE_PRECISION)
    if case.first_difference is not None or case.diverged is not None:
        yield Cause("unknown", "")
    elif case.verdict in ("CRASH", "HANG"):
        reason = _reason(case)
        yield Cause("ending", CUT_SHORT if reason in cut_short else reason)
    else:
        yield Cause("reason", _reason(case))


def key_of(finding: Finding) -> str:
    """The law and the trainer's line: a framework that breaks it on several lines can have a single reason."""
    return f"{finding.law}@{(finding.where or '').rpartition('called from ')[2]}"


def _innocent(failed: Sequence[CaseRecord]) -> frozenset[str]:
    """The broken laws on precision that are no cause: another precision passes them with the same wrong numbers."""
    alike = defaultdict[object, list[frozenset[str]]](list)
    for case in failed:
        if case.mistake is None and case.first_difference is not None:
            broken = frozenset(finding.law for finding in case.findings if finding.law.startswith(_OF_PRECISION))
            alike[case.workload, case.path, case.first_difference].append(broken)
    return frozenset(
        law for broken in alike.values() for law in broken[0].union(*broken) - broken[0].intersection(*broken)
    )


def _only_cut_short(failed: Sequence[CaseRecord]) -> frozenset[str]:
    """The reasons of crashes that only happen after processes were killed while saving."""
    crashed = [(_reason(case), "killed" in case.resumed) for case in failed if case.verdict == "CRASH"]
    return frozenset(one for one, killed in crashed if killed) - {one for one, killed in crashed if not killed}


def _mistakes(failed: Sequence[CaseRecord], shown: Mapping[int, Sequence[Cause]]) -> dict[Cause, Cause]:
    """Broken laws that are one bug, each with the law of the most cases. A law on several lines, or several laws on one
    line, are one bug if one never breaks without the other; so are all laws of a chapter on one line."""
    cases, lines = defaultdict[Cause, set[int]](set), defaultdict[Cause, set[str]](set)
    for case in failed:
        for cause in shown[id(case)]:
            if cause.kind == "law":
                cases[cause].add(id(case))
                lines[cause] |= {one.where or "" for one in case.findings if key_of(one) == cause.key}
    found: list[list[Cause]] = []
    for cause in sorted(cases, key=lambda one: -len(cases[one])):
        law, chapter = (cause.key.partition(at)[0] for at in "@/")
        for group in found:
            first, *_ = group
            within = any(cases[cause] <= cases[other] for other in group)
            on_one_line = any(lines[cause] & lines[other] for other in group)
            if (within and (law == first.key.partition("@")[0] or on_one_line)) or (
                on_one_line and chapter == first.key.partition("/")[0]
            ):
                group.append(cause)
                break
        else:
            found.append([cause])
    return {
        one: replace(group[0], same=tuple(other.key for other in group[1:]))
        for group in found
        if len(group) > 1
        for one in group
    }


def _laws_of_bugs(failed: Sequence[CaseRecord], shown: Mapping[int, Sequence[Cause]]) -> dict[str, Cause]:
    """The law that most cases with the numbers of a known bug break, by bug."""
    often, broken = Counter[str](), defaultdict[str, Counter[Cause]](Counter)
    for case in failed:
        laws = [cause for cause in shown[id(case)] if cause.kind == "law"]
        for name in case.explained_by:
            if PAIR not in name:
                often[name] += 1
                broken[name].update(laws if len(laws) == 1 else ())
    most = {name: counts.most_common(1)[0] for name, counts in broken.items() if counts}
    return {name: law for name, (law, count) in most.items() if 2 * count > often[name]}


def _with_law(case: CaseRecord, shown: Sequence[Cause], laws: Mapping[str, Cause]) -> Iterator[Cause]:
    """The causes, with the law that explains a bug instead of the bug."""
    own = [cause for cause in shown if cause.kind == "law"]
    if not own and {cause.kind for cause in shown} & {"bug", "pair", "unknown"}:
        yield from {laws[name]: None for name in case.explained_by if name in laws}
    for cause in shown:
        names = cause.key.split(OR) if cause.kind in ("bug", "pair") else []
        if not any(name in laws for name in names):
            yield cause


def _factors(cases: Sequence[CaseRecord], named: Mapping[int, Sequence[str]]) -> dict[int, list[Cause]]:
    """The factors that explain each case, with known bugs that explain the factor. named: the bugs of each case."""
    found = defaultdict[int, list[Cause]](list)
    for factor in factors(cases):
        precisions = {case.precision for case in factor.cases}
        # A trainer may compute each precision in a separate branch.
        alike = [case for case in cases if case.precision in precisions]
        known = _common_bugs(factor.cases, alike)
        is_everywhere = not any(case.verdict in PASSED for case in alike)
        if len(known) == 1 and not is_everywhere and all(known[0] in named.get(id(case), ()) for case in factor.cases):
            # Correct updates in other cases refute the factor, not the bug.
            continue
        cause = Cause("factor" if factor.is_constant else "factors", factor.text, known)
        for case in factor.cases:
            found[id(case)].append(cause)
    return found


def _common_bugs(some: Sequence[CaseRecord], cases: Sequence[CaseRecord]) -> tuple[str, ...]:
    """The known bugs that give the numbers of ``some`` cases and contradict no other case."""
    names = (name for name in some[0].explained_by if all(name in case.explained_by for case in some))
    return tuple(name for name in names if PAIR not in name and not any(speaks_against(case, name) for case in cases))


def _reason(case: CaseRecord) -> str:
    """Identifies the reason of a verdict: its code and line, or the whole sentence."""
    reason = case.reason
    known = [reason.code, reason.where] if reason is not None and reason.code else [case.headline]
    return ": ".join(filter(None, [case.verdict, *known]))


_RARE = {fault.name for fault in RARE}

#: Joins the names of bugs that no case tells apart.
OR = " | "


def bugs(cases: Sequence[CaseRecord]) -> dict[int, list[str]]:
    """The known bugs of each case, by its id(): one, several joined by `OR` that these cases cannot tell apart, or two
    at once. Two bugs are one name, joined by `PAIR`, if one never shows alone."""
    tested = [case for case in cases if case.mistake is None and (case.explained_by or case.ruled_out)]
    names = dict.fromkeys(name for case in tested for name in case.explained_by)
    explained = {
        name: [case for case in tested if _explains(case, name)] for name in names if not _is_refuted(name, tested)
    }
    # If clipping or a wide bound hides factors, too many trainers give the same numbers.
    explained = {name: one for name, one in explained.items() if any(len(case.gradient_factors) < 2 for case in one)}
    contrary = {name: sum(speaks_against(case, name) for case in tested) for name in explained}
    found: dict[int, list[str]] = {}
    while explained:
        rank = max((len(explained[name]), -contrary[name]) for name in explained)
        best = [name for name in explained if (len(explained[name]), -contrary[name]) == rank]
        first = explained[best[0]]
        alike = [name for name in best if [*map(id, explained[name])] == [*map(id, first)]]
        # A single bug is the simpler explanation, and a common one the likelier.
        for is_worse in (lambda name: PAIR in name, _RARE.__contains__):
            alike = [name for name in alike if not is_worse(name)] or alike
        found.update(_by_case(first, alike))
        left = {name: [case for case in one if id(case) not in found] for name, one in explained.items()}
        explained = {name: one for name, one in left.items() if one}
    return found


_ATTRIBUTES: tuple[Callable[[CaseRecord], object], ...] = (
    lambda case: case.workload,
    lambda case: case.precision,
    lambda case: case.world_size,
    lambda case: case.accumulation,
    lambda case: case.resumed_at is not None,
)
"""What a second bug may depend on."""


def _is_refuted(name: str, tested: Sequence[CaseRecord]) -> bool:
    """Whether other cases refute a bug, or a pair: one that passed, or failed ones that differ in nothing else.

    Another bug may add to this one in all cases with some attribute, such as a workload or a resume. Then the numbers
    of these cases show neither, and the others show this one."""
    against = [case for case in tested if speaks_against(case, name) and not _is_of_pair(case, name)]
    own = [case for case in tested if _explains(case, name)]
    if not against:
        return any(_is_correct_there(case, name, own) for case in tested)
    if PAIR in name or any(not case.failed for case in against) or len(own) < _FEWEST or len(against) > 2 * len(own):
        return True
    seen = [(of, {*map(of, own)}) for of in _ATTRIBUTES]
    return not all(any(of(case) not in values for of, values in seen) for case in against)


def _data(case: CaseRecord) -> object:
    return case.workload, case.world_size, case.accumulation


def _is_of_pair(case: CaseRecord, name: str) -> bool:
    """Whether the bug gives the numbers of the case together with another one."""
    return any(name in pair.split(PAIR) for pair in case.explained_by if PAIR in pair)


_FEWEST = 3
"""Cases that show a bug although others have another one too."""


def _by_case(cases: Sequence[CaseRecord], names: Sequence[str]) -> dict[int, list[str]]:
    """The bugs of each case; each of ``names`` explains all of them. The bugs of a pair are two if each shows without
    the other in some case; otherwise a single bug can do both."""
    shown_in: dict[str, frozenset[int]] = {}
    for name in names:
        parts = name.split(PAIR)
        in_cases = [frozenset(id(case) for case in cases if part in _shown(case, name)) for part in parts]
        is_one = any(one <= other for one, other in permutations(in_cases, 2)) or len(parts) == 1
        shown_in |= {name: frozenset(map(id, cases))} if is_one else dict(zip(parts, in_cases, strict=True))
    alike: Mapping[frozenset[int], list[str]] = defaultdict(list)
    for name, own in shown_in.items():
        alike[own].append(name)
    return {id(case): [OR.join(some) for own, some in alike.items() if id(case) in own] for case in cases}


def _explains(case: CaseRecord, name: str) -> bool:
    """Whether the bug, or the only possible bug of a pair, gives the numbers of this case."""
    return name in case.explained_by or (len(shown := _shown(case, name)) == 1 and shown[0] in case.explained_by)


def speaks_against(case: CaseRecord, name: str) -> bool:
    """Whether the bug, or the pair of bugs, would give other numbers in this case. Ranks that diverge have another
    bug."""
    return case.diverged is None and not _explains(case, name) and bool(_shown(case, name))


def _is_correct_there(case: CaseRecord, name: str, own: Sequence[CaseRecord]) -> bool:
    """Whether the windows that should have the bug are correct, with the data of one of its ``own`` cases."""
    bug, only, place = name.partition(ONLY)
    alike = any(_data(case) == _data(one) for one in own)
    return bool(only) and not case.failed and place in case.places and bug in case.ruled_out and alike


def _shown(case: CaseRecord, name: str) -> list[str]:
    """The bugs of a pair that would show in this case; both if only the two together give its numbers."""
    return [one for one in name.split(PAIR) if one in case.explained_by or one in case.ruled_out]


#: The range of float32's rounding errors, relative to the largest number of the vector.
_LEAST, _MOST = 2.0**-32, 2.0**-22


def of_single_precision(case: CaseRecord) -> bool:
    """Whether a case in float64 is first wrong by about the rounding of float32."""
    first = case.first_difference
    if first is None or case.diverged is not None or case.precision != "fp64" or case.mistake is not None:
        return False
    step = next((one for one in case.steps if one.step == first.step), None)
    right = step and (step.expected if first.quantity == "weights" else step.gradient_expected)
    largest = max((abs(value) for value in right or () if value is not None), default=0.0)
    if not largest or not isfinite(largest) or first.error is None or not isfinite(first.error):
        return False
    return _LEAST < first.error / largest < _MOST
