"""Known bugs whose numbers the cases of a trainer have.

One is named only if it makes the numbers of every case in which it would show, and no other one does too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations

from conformance.results.records import PAIR, CaseRecord

#: Joins the names of bugs that no case tells apart.
OR = " | "


def bugs(cases: Sequence[CaseRecord]) -> dict[int, list[str]]:
    """The known bugs of each case that has any, by its id(): one, several joined by `OR` that these cases cannot tell
    apart, or two at once. Two of which one never shows alone are one name, joined by `PAIR`."""
    tested = [case for case in cases if case.mistake is None and (case.explained_by or case.ruled_out)]
    names = dict.fromkeys(name for case in tested for name in case.explained_by)
    explained = {
        name: [case for case in tested if _explains(case, name)]
        for name in names
        if not any(speaks_against(case, name) for case in tested)
    }
    # Where clipping or a wide bound hides factors, too many trainers make the same numbers.
    explained = {name: one for name, one in explained.items() if any(len(case.gradient_factors) < 2 for case in one)}
    found: dict[int, list[str]] = {}
    while explained:
        most = max(map(len, explained.values()))
        best = [name for name in explained if len(explained[name]) == most]
        first = explained[best[0]]
        alike = [name for name in best if [*map(id, explained[name])] == [*map(id, first)]]
        # A single bug is the simpler explanation.
        alike = [name for name in alike if PAIR not in name] or alike
        found.update(_by_case(first, alike))
        left = {name: [case for case in one if id(case) not in found] for name, one in explained.items()}
        explained = {name: one for name, one in left.items() if one}
    return found


def _by_case(cases: Sequence[CaseRecord], names: Sequence[str]) -> dict[int, list[str]]:
    """What each of these cases has, all of which any of ``names`` explains. The bugs of a pair are two if each shows
    without the other in some case; else a single mistake may do what both do."""
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
    """Whether the bug makes the numbers of this case; of a pair, the one that can be in it."""
    return name in case.explained_by or (len(shown := _shown(case, name)) == 1 and shown[0] in case.explained_by)


def speaks_against(case: CaseRecord, name: str) -> bool:
    """Whether the bug, or the pair of bugs, would show in this case and make other numbers. Where the ranks have come
    apart there is another bug, which does."""
    return case.diverged is None and not _explains(case, name) and bool(_shown(case, name))


def _shown(case: CaseRecord, name: str) -> list[str]:
    """Those of a pair of bugs that would show in this case; both if nothing but the two together makes its numbers."""
    return [one for one in name.split(PAIR) if one in case.explained_by or one in case.ruled_out]
