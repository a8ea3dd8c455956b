"""The cause over a whole run: a known bug is named if every case that would show it does, and no other case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conformance.report.card import card_of
from conformance.report.causes import Cause, causes, telling, title
from conformance.results.plain import record
from conformance.results.result_lines import CaseRecord, Finding, Reason

from ..results import synthetic
from ..results.regression import Case

TEXTS = {"sum": "sums", "twice": "divides twice", "other": "does something else"}
UNKNOWN = "Wrong numbers that no known bug explains."


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


def times(factor: float, *more: float, layout: tuple[int, int] = (2, 2), **fields: object) -> CaseRecord:
    return wrong(layout=layout, gradient_factors=[factor, *more], **fields)


def unseen(**factors: object) -> CaseRecord:
    """A case without recorded gradients."""
    steps = synthetic.passing("mine", "ddp", 1, 1, "fp32", "line")["steps"]
    return wrong(steps=[{**step, "gradient_observed": [None, None]} for step in steps], **factors)


APART = {"verdict": "DIVERGED", "diverged": {"step": 1, "weights": [[1.0], [2.0]]}, "ruled_out": ["sum"]}
HIDDEN = wrong("sum", gradient_factors=[2, 3], workload="clip")
BOTH, ONLY_SUM = wrong("sum + twice", ruled_out=["sum", "twice"]), wrong("sum", ruled_out=[], layout=(2, 1))
SUMS = [wrong("sum", layout=(2, at)) for at in (2, 3, 4)]
SECOND = [wrong(ruled_out=["sum", "other"], workload="unused")] * 2
IN_SHORT = "sum only in short windows"
#: Cases, and the causes that are named, each with the number of its cases.
NAMED: dict[str, tuple[Sequence[CaseRecord], Sequence[tuple[str, int]]]] = {
    "a bug where two others may add to it, in a workload and in a resume": (
        [*SUMS, wrong(ruled_out=["sum", "other"], workload="unused"), wrong(ruled_out=["sum"], resumed_at=3)],
        [("The trainer sums.", 4), (UNKNOWN, 1)],
    ),
    "the bug of the same first wrong number, where a second bug changes later ones": (
        [*SUMS, wrong(ruled_out=["sum", "other"], resumed_at=3)],
        [("The trainer sums.", 4)],
    ),
    "of two bugs that explain as many cases, the one that no case speaks against": (
        [
            wrong("sum", layout=(2, 1)),
            *(wrong("sum", "twice", layout=(2, at)) for at in (2, 3)),
            wrong("twice", ruled_out=["sum", "other"], workload="unused"),
        ],
        [("The trainer divides twice.", 3), ("The trainer sums.", 1)],
    ),
    "a bug that every case speaks for": (
        [wrong("sum", "twice"), wrong("sum", ruled_out=["twice", "other"], layout=(2, 3)), case(ruled_out=["other"])],
        [("The trainer sums.", 2)],
    ),
    "a case with correct numbers rules it out": ([wrong("sum"), case(2, 1)], [(UNKNOWN, 1)]),
    "ranks that come apart have another bug and speak against none": (
        [wrong("sum"), wrong("sum", layout=(2, 3)), wrong(layout=(2, 4), **APART)],
        [("The trainer sums.", 2), (UNKNOWN, 1)],
    ),
    "a second bug in the cases of one workload": ([*SUMS, *SECOND], [("The trainer sums.", 3), (UNKNOWN, 2)]),
    "a second bug in cases that differ in nothing": (
        [*SUMS, wrong(ruled_out=["sum", "other"], layout=(2, 3))],
        [(UNKNOWN, 4)],
    ),
    "a second bug, but the first one is missing elsewhere": ([*SUMS, *SECOND, case(2, 1)], [(UNKNOWN, 5)]),
    "more cases with a second bug than a third allows": ([*SUMS, *(SECOND * 4)], [(UNKNOWN, 11)]),
    "bugs that no case tells apart": (
        [wrong("sum", "twice")],
        [("The trainer probably sums.", 1)],
    ),
    "a bug of some windows": (
        [wrong(IN_SHORT), wrong(IN_SHORT, layout=(2, 3)), case(2, 1)],
        [("The trainer sums, but only in short windows.", 2)],
    ),
    "a bug of some windows, which are correct with the same data": (
        [wrong(IN_SHORT), case(2, 2, places=["in short windows"])],
        [(UNKNOWN, 1)],
    ),
    "a bug of some windows, where it may not show with other data": (
        [wrong(IN_SHORT), case(2, 1, places=["in short windows"]), case(2, 2, places=["after a resume"])],
        [("The trainer sums, but only in short windows.", 1)],
    ),
    "two bugs in other cases": (
        [wrong("sum", ruled_out=()), wrong("twice", ruled_out=(), layout=(1, 2))],
        [("The trainer sums.", 1), ("The trainer divides twice.", 1)],
    ),
    "a pair with a bug that cannot be in each case": ([BOTH, ONLY_SUM], [("The trainer sums and divides twice.", 2)]),
    "a pair that a case rules out": ([BOTH, ONLY_SUM, wrong(ruled_out=["sum", "twice"])], [(UNKNOWN, 3)]),
    # Dividing twice gives 1/2 at two micro-batches, but not at three.
    "a constant factor is not a bug of the layout": (
        [
            wrong("twice", gradient_factors=[0.5], layout=(1, 2)),
            wrong(ruled_out=["twice"], gradient_factors=[0.5], layout=(1, 3)),
        ],
        [("Every gradient is 0.5x the correct one, at any accumulation.", 2)],
    ),
    **{
        f"what has no effect{whatever}": (
            [times(2, layout=layout) for layout in layouts],
            [(f"Every gradient is 2x the correct one{whatever}.", 2)],
        )
        for layouts, whatever in (
            (((1, 2), (1, 3)), ", at any accumulation"),
            (((2, 2), (3, 2)), ", at any world size"),
            (((1, 2), (3, 1)), ", at any accumulation and world size"),
            (((2, 2), (2, 2)), ""),
        )
    },
    **{
        f"correct numbers at {layout} may hide an effect": (
            [times(2, layout=(2, 1)), times(2, layout=(3, 2)), case(*layout, "another")],
            [(f"Every gradient is 2x the correct one{whatever}.", 2)],
        )
        for layout, whatever in (
            ((2, 1), ", at any accumulation and world size"),
            ((4, 2), ", at any accumulation"),
        )
    },
    "what is seen in one case, and what would make it": (
        [wrong("sum", "twice", gradient_factors=[2])],
        [("Every gradient is 2x the correct one.", 1)],
    ),
    "what another case rules out, and a pair, would not": (
        [wrong("sum", "sum + twice", gradient_factors=[2], workload="weighted"), case(2, 2, "momentum")],
        [("Every gradient is 2x the correct one.", 1)],
    ),
    "a factor that another workload does not show is the only bug that gives it": (
        [
            wrong("sum", gradient_factors=[2], workload="weighted"),
            case(2, 2, "momentum", ruled_out=["other"]),
        ],
        [("The trainer sums.", 1)],
    ),
    "but one of several bugs": (
        [
            wrong("sum", "twice", gradient_factors=[2], workload="weighted"),
            case(2, 2, "momentum", ruled_out=["other"]),
        ],
        [("Every gradient is 2x the correct one.", 1)],
    ),
    "a factor that another layout does not show is a bug of the layout": (
        [wrong("sum", gradient_factors=[2]), case(1, 1, ruled_out=["other"])],
        [("The trainer sums.", 1)],
    ),
    "or depends on the layout": (
        [times(2), case(1, 1, ruled_out=["other"])],
        [("Every gradient is 2x the correct one at world size 2 and correct at 1.", 1)],
    ),
    # A sum over N ranks that is divided by N - 1.
    "a factor that depends on the layout is one cause": (
        [times(2), times(2, layout=(2, 3)), times(1.5, layout=(3, 2)), times(4 / 3, layout=(4, 1))],
        [("Every gradient is 2x the correct one at world size 2, 1.5x at 3 and 1.33x at 4.", 4)],
    ),
    "and simpler than two bugs": (
        [
            wrong("sum", ruled_out=(), gradient_factors=[2], layout=(2, 1)),
            wrong("sum + twice", ruled_out=["sum", "twice"], gradient_factors=[1.5], layout=(3, 2)),
        ],
        [("Every gradient is 2x the correct one at world size 2 and 1.5x at 3.", 2)],
    ),
    "a factor that is no fraction is one number in every case": (
        [times(11863283 / 8388608), times(41 / 29), times(10380373 / 7340032)],
        [("Every gradient is about 1.41x the correct one.", 3)],
    ),
    # Averages over one rank or one micro-batch cannot be wrong, so these are different bugs.
    "two factors that are no function of one thing are two causes": (
        [times(2, layout=(1, 2)), times(0.5, layout=(2, 1))],
        [("Every gradient is 2x the correct one.", 1), ("Every gradient is 0.5x the correct one.", 1)],
    ),
    "factors that are no function of anything are one cause": (
        [times(0.5), times(5), times(3, layout=(2, 3)), times(7), times(0.5, layout=(2, 3))],
        [("Every gradient is wrong by a factor that differs from case to case, such as 3x, 5x and 7x.", 5)],
    ),
    "a case that hides its factor is of the cause that others show": (
        [times(3), times(2, 3, 4)],
        [("Every gradient is 3x the correct one.", 2)],
    ),
    "and tells nothing alone": ([times(2, 3, 4)], [(UNKNOWN, 1)]),
    "nor is a bug known": ([HIDDEN], [(UNKNOWN, 1)]),
    "unless a case does not hide factors": ([HIDDEN, wrong("sum")], [("The trainer sums.", 2)]),
    "a factor of some of many wrong cases is a coincidence": ([times(0.5), wrong(), wrong()], [(UNKNOWN, 3)]),
    "a factor of some precisions says so": (
        [times(0.5, precision="bf16"), times(0.5, precision="fp16"), case(2, 2)],
        [("In bf16 and fp16 every gradient is 0.5x the correct one.", 2)],
    ),
    "steps where gradients were not seen": (
        [unseen(gradient_factors=[0.5], step_factors=[0.5])],
        [("Every update is 0.5x the correct one.", 1)],
    ),
    "gradients that were not seen": (
        [unseen(gradient_factors=[0.5])],
        [("The weights move as if every gradient were 0.5x the correct one.", 1)],
    ),
    "a law that is broken in all these cases": (
        [wrong("sum", findings=[synthetic.finding("MUST")]) for _ in range(2)],
        [("The trainer clips before it unscales.", 2)],
    ),
    "an unknown bug is one entry whatever its numbers": (
        [wrong(headline=f"step {at}: wrong", verdict=("FAIL (numerics)", "DIVERGED")[at % 2]) for at in range(3)],
        [(UNKNOWN, 3)],
    ),
}


@pytest.mark.parametrize(("cases", "said"), NAMED.values(), ids=NAMED)
def test_what_is_named(cases: Sequence[CaseRecord], said: Sequence[tuple[str, int]]) -> None:
    assert sorted(named(*cases)) == sorted(said)


def test_a_factor_that_is_no_number_is_text_all_the_same() -> None:
    assert named(times(float("inf")), times(float("nan"), layout=(2, 3)))


def named_laws(*laws: tuple[str, str], **more: object) -> CaseRecord:
    law = synthetic.finding("MUST")
    return wrong(findings=[{**law, "law": name, "says": name, "where": where} for name, where in laws], **more)


def of(*cases: CaseRecord) -> list[tuple[str, str, list[int]]]:
    """The causes, each with the numbers of its cases."""
    number = {id(case): at for at, case in enumerate(cases)}
    return [(cause.kind, cause.key, [number[id(case)] for case in found]) for cause, found in causes(cases)]


def test_two_bugs_of_which_each_shows_alone_are_two_causes_of_the_case_that_has_both() -> None:
    window, epoch = wrong("sum", ruled_out=[]), wrong("twice", "other", ruled_out=[])
    both = wrong("sum + twice", "sum + other", ruled_out=["sum", "twice", "other"])
    assert of(window, window_too := wrong("sum", ruled_out=[], layout=(2, 3)), epoch, both) == [
        ("pair", "sum", [0, 1, 3]),
        ("pair", "twice | other", [2, 3]),
    ], window_too


def test_a_guard_is_no_second_cause_beside_the_bug_of_its_numbers_and_one_beside_another_bug() -> None:
    """Such as a wrong short window and a wrong resume, and some cases with both."""
    lost = [{"name": "resumed at the next window", "holds": False, "expected": "", "observed": ""}]
    window, resumed = wrong("sum", ruled_out=[]), wrong("twice", ruled_out=[], guards=lost)
    both = wrong("sum + twice", ruled_out=["sum", "twice"], guards=lost)
    assert of(window, resumed, resumed_too := wrong("twice", ruled_out=[], guards=lost), both) == [
        ("guard", "resumed at the next window", [1, 2, 3]),
        ("pair", "sum", [0, 3]),
    ], resumed_too


def broken(name: str, diagnosis: str = "") -> dict[str, object]:
    guard = {"name": name, "holds": False, "expected": "", "observed": "", "diagnosis": diagnosis}
    return {"guards": [guard], "first_difference": None, "ruled_out": ()}


def test_the_mistake_that_breaks_a_guard_is_the_cause_and_not_the_guard() -> None:
    cases = [
        wrong(**broken("resumed at the next window", "elsewhere")),
        wrong(**broken("resumed at the next window", "other order")),
        wrong(**broken("shards differ", "other order")),
        wrong(**broken("shards differ")),
    ]
    assert of(*cases) == [
        ("guard", "other order", [1, 2]),
        ("guard", "elsewhere", [0]),
        ("guard", "shards differ", [3]),
    ]


def test_laws_on_two_lines_are_two_causes_and_on_one_line_they_are_one() -> None:
    clears, clips = ("acc/cleared", "f.py:1, called from t.py:9"), ("clip/once", "f.py:2, called from t.py:9")
    after = ("clip/after-sync", "f.py:2, called from t.py:9")
    cases = [named_laws(clears), named_laws(clears, clips), named_laws(clears, after), named_laws(clears, after, clips)]
    assert of(*cases) == [("law", "acc/cleared@t.py:9", [0, 1, 2, 3]), ("law", "clip/once@t.py:9", [1, 2, 3])]
    [_, (clip, _)] = causes(cases)
    assert clip.same == ("clip/after-sync@t.py:9",)
    assert [one.law for one in telling(clip, cases[2], [causes(cases)[0][0]])] == ["clip/after-sync"]


def test_a_law_that_breaks_with_another_one_is_no_second_cause() -> None:
    """A rank that skips an overflow alone takes no step."""
    alone, missing = ("amp/all-ranks-skip", "t.py:9"), ("acc/step-after-all-backwards", "t.py:7")
    assert of(named_laws(alone, missing), named_laws(alone)) == [("law", "amp/all-ranks-skip@t.py:9", [0, 1])]
    assert len(of(named_laws(alone), named_laws(missing))) == 2


def test_overflows_that_a_rank_misses_follow_from_unscaling_its_own_gradients() -> None:
    unscales, alone = ("amp/unscale-after-sync", "t.py:9"), ("amp/all-ranks-skip", "t.py:12")
    missed = broken("overflows are skipped")
    cases = [named_laws(unscales, verdict="FAIL (law)"), named_laws(unscales, alone, **missed)]
    assert of(*cases) == [("law", "amp/unscale-after-sync@t.py:9", [0, 1])]
    assert ("guard", "overflows are skipped", [1]) in of(named_laws(unscales), named_laws(**missed))


def test_ranks_that_come_apart_have_the_cause_that_explains_it_in_other_cases() -> None:
    apart, lost = ("ddp/identical-weights", "t.py:9"), broken("resumed as it was stopped", "other state")
    other = broken("resumed as it was stopped", "other place")
    cases = [named_laws(apart, **lost), named_laws(apart), named_laws(apart)]
    assert of(*cases) == [("guard", "other state", [0, 1, 2])]
    # Two causes leave open which one it is.
    assert ("law", "ddp/identical-weights@t.py:9", [2]) in of(
        named_laws(apart, **lost), named_laws(apart, **other), named_laws(apart)
    )


def test_a_schedule_of_epochs_is_no_cause_where_a_resume_loses_its_place_in_them() -> None:
    late = ("acc/schedule-per-epoch", "t.py:9")
    case = named_laws(late, **broken("resumed at the next window", "resumes at another place in the data"))
    [(cause, [_])] = causes([case])
    assert (cause.kind, telling(cause, case)) == ("guard", [])
    assert [kind for kind, _, _ in of(named_laws(late))] == ["law"]


def test_a_crash_and_a_guard_account_for_the_laws_that_are_broken_with_them() -> None:
    clears = ("acc/cleared", "t.py:9")
    crash = named_laws(clears, verdict="CRASH", headline="rank 0 raised E (t.py:9)", first_difference=None)
    assert [kind for kind, _, _ in of(crash)] == ["ending"]
    lost = {**broken("resumed at the next window"), "ruled_out": ("other",)}
    assert [kind for kind, _, _ in of(named_laws(clears, **lost), wrong(**lost))] == ["guard"]


def test_a_law_that_others_break_with_right_numbers_is_not_why_they_are_wrong() -> None:
    saves = ("save/one-writer", "t.py:9")
    right = named_laws(saves, verdict="FAIL (law)", first_difference=None, ruled_out=())
    lost = broken("resumed at the next window", "other order")
    assert of(right, named_laws(saves, **lost)) == [
        ("law", "save/one-writer@t.py:9", [0, 1]),
        ("guard", "other order", [1]),
    ]
    assert len(of(right, named_laws(saves))) == 1, "nothing else says why"


def test_the_numbers_of_a_bug_are_due_to_the_law_that_is_broken_where_they_are_seen() -> None:
    late = ("acc/schedule-per-step", "t.py:9")
    cases = [named_laws(late, explained_by=["twice"]), named_laws(late, explained_by=["twice"]), wrong("twice")]
    assert of(*cases) == [("law", "acc/schedule-per-step@t.py:9", [0, 1, 2])]
    others = [wrong("twice", layout=(2, size)) for size in (3, 4)]
    assert of(*cases[1:], *others) == [("bug", "twice", [0, 1, 2, 3])], "most cases break no law"


def ended(code: str, where: str | None = None, **more: object) -> CaseRecord:
    more = {"headline": f"rank 0 {code}", "first_difference": None, "ruled_out": (), **more}
    return wrong(verdict="CRASH", reason={"code": code, "where": where}, **more)


def test_what_is_cut_short_as_it_is_saved_is_one_cause() -> None:
    def crash(code: str, resumed: str) -> CaseRecord:
        return ended(code, resumed=resumed)

    killed = crash("raised KeyError", "killed"), crash("raised EOFError", "killed-between-files")
    [(cause, cases)] = causes(killed)
    assert title(cause, cases, TEXTS).startswith("Killed while saving, the trainer cannot resume")
    elsewhere = crash("raised EOFError", "once")
    assert [cases for _, _, cases in of(*killed, elsewhere)] == [[1, 2], [0]]


def test_numbers_that_float32_rounds_off_are_one_cause_whether_the_loss_shows_it_or_not() -> None:
    difference = {"step": 0, "quantity": "gradient", "parameter": "weight[0]", "expected": 1.0, "observed": 1.0}
    step = {"step": 0, "window": 0, "expected": [1.0], "observed": [1.0], "gradient_expected": [1.0]}

    def off(error: float, precision: str = "fp64", **more: object) -> CaseRecord:
        first = {**difference, "error": error}
        return wrong(precision=precision, first_difference=first, steps=[step], ruled_out=(), **more)

    loss = {"guards": broken("precision of the loss")["guards"]}
    assert [(kind, cases) for kind, _, cases in of(off(3e-8), off(5e-9, **loss))] == [("precision", [0, 1])]
    for error, precision in ((1e-5, "fp64"), (1e-13, "fp64"), (3e-8, "fp32"), (float("nan"), "fp64")):
        assert [kind for kind, _, _ in of(off(error, precision))] == ["unknown"]


def test_warnings_explain_no_failure() -> None:
    """Warnings have their own section, and also occur with correct numbers."""
    failed = wrong(findings=[synthetic.finding("SHOULD")])
    [(cause, _)] = causes([failed])
    assert (cause.kind, telling(cause, failed)) == ("unknown", [])


def test_a_law_that_a_framework_breaks_in_several_lines_is_one_cause_and_lines_of_a_trainer_are_several() -> None:
    lines = {
        "framework.py:66, called from train.py:47": 1,
        "framework.py:47, called from train.py:47": 2,
        "train.py:30": 3,
    }
    law = synthetic.finding("MUST")
    cases = [wrong(layout=(1, size), findings=[{**law, "where": line}]) for line, size in lines.items()]
    assert [len(found) for _, found in causes(cases)] == [2, 1]
    in_each = wrong(findings=[{**law, "where": line} for line in lines])
    assert [len(found) for _, found in causes([in_each, *cases])] == [3, 2], "a case counts for each"
    assert [len(found) for _, found in causes([in_each])] == [1], "one bug may be on several lines"


def test_mistakes_of_one_kind_are_one_entry() -> None:
    found = [
        wrong(verdict="SETUP", mistake="clip", headline=f"You clipped at {threshold}.", first_difference=None)
        for threshold in (1, 2)
    ]
    assert [(cause, len(cases)) for cause, cases in causes(found)] == [(Cause("setup", "clip"), 2)]


def test_crashes_of_one_type_in_one_line_are_one_entry_whatever_they_say() -> None:
    one = ended("raised E", "a.py:4")
    assert len(causes([one, ended("raised E", "a.py:4", headline="rank 1 raised E: 9 left (a.py:4)")])) == 1
    assert len(causes([one, ended("raised E", "a.py:8")])) == 2
    assert len(causes([one, ended("raised F", "a.py:4")])) == 2


def test_a_law_on_precision_is_no_cause_of_numbers_that_go_wrong_without_it() -> None:
    """fp16 and fp32 fail with the same numbers."""
    finding = {
        "law": "amp/b",
        "level": "MUST",
        "says": "B.",
        "expected": "",
        "observed": "",
        "why": "",
        "fix": "",
        "count": 1,
        "ranks": [0],
    }
    half = wrong(precision="fp16", findings=[finding], explained_by=[])
    assert named(half) == [("The trainer breaks a law: B.", 1)]
    assert named(half, wrong()) == [(UNKNOWN, 2)]
    difference = {"step": 0, "quantity": "gradient", "parameter": "weight[0]", "expected": 1.0, "observed": 3.0}
    assert len(named(half, wrong(first_difference=difference))) == 2


def test_the_title_of_a_crash_has_its_call_and_the_card_its_message() -> None:
    reason = {"code": "raised OSError", "where": "train.py:60", "source": ["model.load(path)  # resumed"]}
    said = "rank 1 raised OSError: no such file (train.py:60)"
    crashed = wrong(verdict="CRASH", headline=said, first_difference=None, reason=reason, notes=["it is odd"])
    card = card_of(crashed)
    assert card.headline == "The trainer crashes at `model.load(path)  # resumed`: OSError (train.py:60)"
    assert card.facts == (("observed", "Rank 1 raised OSError: no such file (train.py:60)"), ("note", "it is odd"))
    assert not any("model.load" in part.text for part in card.parts())


@pytest.mark.parametrize(("where", "is_told"), [(None, True), ("train.py:60", True), ("train.py:9", False)])
def test_the_title_of_a_crash_has_the_law_that_it_breaks_there(where: str | None, is_told: bool) -> None:
    reason = Reason("raised RuntimeError", "train.py:60", ("scaler.unscale_(optimizer)",))
    crashed = wrong(verdict="CRASH", headline="rank 0 raised RuntimeError: twice", first_difference=None)
    law = Finding("amp/unscale-once", "MUST", "It MUST.", "", "", "", "", 1, (0,), where=where)
    crashed = replace(crashed, reason=reason, findings=(law,))
    [(cause, _)] = [one for one in causes([crashed]) if one[0].kind == "ending"]
    told = title(cause, [crashed], TEXTS, telling(cause, crashed))
    assert told.endswith("crashes at `scaler.unscale_(optimizer)`: RuntimeError")
    assert told.startswith("The trainer crashes") == (not is_told)


def test_the_title_of_a_crash_is_no_story() -> None:
    said = "rank 0 raised OSError: no such file: " + "please look at the folder, and see whether it is there; " * 4
    [(cause, cases)] = causes([wrong(verdict="CRASH", headline=said, first_difference=None, ruled_out=())])
    short = title(cause, cases, TEXTS)
    assert short.startswith("rank 0 raised OSError: no such file: please look at") and short.endswith(" …")
    assert len(short) < 165 and short[:-2] in said
