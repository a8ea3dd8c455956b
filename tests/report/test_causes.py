"""The cause over a whole run: a known bug is named if every case in which it would show speaks for it, and no other."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.report.causes import Cause, causes, title
from conformance.results.plain import record
from conformance.results.records import CaseRecord

from ..results import synthetic
from ..results.regression import Case

TEXTS = {"sum": "sums", "twice": "divides twice", "other": "does something else"}
ANY_LAYOUT = "whatever the accumulation and the world size"
EITHER = "A trainer that sums, or divides twice would do that, and these cases cannot tell."


def case(world: int = 1, accumulation: int = 1, workload: str = "line", **more: object) -> CaseRecord:
    plain: Case = synthetic.passing("mine", "ddp", world, accumulation, "fp32", workload)
    return record(CaseRecord, {**plain, "ruled_out": ["sum", "twice", "other"], **more})


def wrong(
    *explained: str, ruled_out: Sequence[str] = ("other",), layout: tuple[int, int] = (2, 2), **more: object
) -> CaseRecord:
    difference = {"step": 0, "quantity": "gradient", "parameter": "weight[0]", "expected": 1.0, "observed": 2.0}
    fields: Case = {"verdict": "FAIL (numerics)", "headline": "step 0: wrong", "first_difference": difference}
    fields |= {"explained_by": [*explained], "ruled_out": [*ruled_out], **more}
    return case(*layout, **fields)


def named(*cases: CaseRecord) -> list[tuple[str, int]]:
    return [(title(cause, found, TEXTS), len(found)) for cause, found in causes(cases)]


def test_a_bug_that_every_case_speaks_for_is_named() -> None:
    found = wrong("sum", "twice"), wrong("sum", ruled_out=["twice", "other"], layout=(2, 3))
    assert named(*found, case(ruled_out=["other"])) == [("The trainer sums.", 2)]


def test_a_bug_that_a_case_with_right_numbers_rules_out_is_not_named() -> None:
    assert named(wrong("sum"), case(2, 1)) == [
        ("The numbers are wrong, and no known bug makes them in every case in which it would show.", 1)
    ]


def test_bugs_that_no_case_tells_apart_are_not_decided_between() -> None:
    assert named(wrong("sum", "twice")) == [("These cases cannot tell which: the trainer sums, or divides twice.", 1)]


def test_two_bugs_in_other_cases_are_two_entries() -> None:
    found = wrong("sum", ruled_out=()), wrong("twice", ruled_out=(), layout=(1, 2))
    assert {text for text, _ in named(*found)} == {"The trainer sums.", "The trainer divides twice."}


def test_a_pair_of_bugs() -> None:
    both = wrong("sum + twice", ruled_out=["sum", "twice"])
    assert named(both, wrong("sum", ruled_out=[], layout=(2, 1))) == [
        ("The trainer sums and divides twice.", 1),
        ("The numbers are wrong, and no known bug makes them in every case in which it would show.", 1),
    ]


def test_a_constant_factor_is_no_bug_of_the_layout() -> None:
    """1/2 at two micro-batches is what dividing twice makes; at three it is not."""
    found = wrong("twice", factor="1/2", layout=(1, 2)), wrong(ruled_out=["twice"], factor="1/2", layout=(1, 3))
    assert named(*found) == [
        (
            (
                "Every gradient is 1/2 of the right one in all 2 cases of this cause, "
                "whatever the accumulation and the world size."
            ),
            2,
        )
    ]


def test_one_case_says_what_is_seen_and_what_would_make_it() -> None:
    assert named(wrong("sum", "twice", factor="2")) == [
        (
            (
                "Every gradient is 2 times the right one in the one case that fails. "
                "A trainer that sums, or divides twice would do that, and these cases cannot tell."
            ),
            1,
        )
    ]


def test_a_factor_that_another_layout_does_not_show_is_a_bug_of_the_layout() -> None:
    found = wrong("sum", factor="2"), case(1, 2)
    assert named(*found) != [("The trainer sums.", 1)]
    assert named(found[0], case(1, 1, ruled_out=["other"])) == [("The trainer sums.", 1)]


def test_an_unknown_bug_is_one_entry_whatever_its_numbers() -> None:
    found = [wrong(headline=f"step {number}: wrong", verdict=verdict)
             for number, verdict in enumerate(["FAIL (numerics)", "DIVERGED", "FAIL (numerics)"])]  # fmt: skip
    assert [count for _, count in named(*found)] == [3]


def test_a_law_that_is_broken_in_all_these_cases_is_the_cause() -> None:
    broken = wrong("sum", findings=[synthetic.finding("MUST")]), wrong("sum", findings=[synthetic.finding("MUST")])
    assert named(*broken) == [("Gradients MUST be unscaled before they are clipped. (amp/unscale-before-clip)", 2)]


def test_mistakes_of_one_kind_are_one_entry() -> None:
    found = [
        wrong(verdict="SETUP", mistake="clip", headline=f"You clipped at {threshold}.", first_difference=None)
        for threshold in (1, 2)
    ]
    assert [(cause, len(cases)) for cause, cases in causes(found)] == [(Cause("setup", "clip"), 2)]


def test_crashes_that_differ_in_digits_are_one_entry_and_lines_count() -> None:
    def crash(text: str) -> CaseRecord:
        return wrong(verdict="CRASH", headline=text, first_difference=None, ruled_out=())

    assert len(causes([crash("rank 0 raised E: 12 left (a.py:4)"), crash("rank 1 raised E: 9 left (a.py:4)")])) == 1
    assert len(causes([crash("rank 0 raised E: 12 left (a.py:4)"), crash("rank 0 raised E: 12 left (a.py:8)")])) == 2
