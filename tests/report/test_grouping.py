"""Matrix, causes and reasons: nothing lost, worst first, in an order that does not depend on the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.report.card import card_of
from conformance.report.grouping import failures, overall, precisions, reasons, trainers
from conformance.report.verdicts import LOOKS, worst
from conformance.results import Results
from conformance.results.plain import record
from conformance.results.result_lines import NOT_CONFORMING, NOT_RUN, PASSED, CaseRecord, Finding

from ..results import synthetic
from ..results.regression import Case


def test_every_case_is_in_the_matrix_once(results: Results) -> None:
    found = [
        case.id + case.trainer
        for trainer in trainers(results)
        for path in trainer.paths
        for cell in path.cells.values()
        for case in cell.cases
    ]
    assert sorted(found) == sorted(case.id + case.trainer for case in results.cases)


def test_order_does_not_depend_on_which_case_finished_first(read: Callable[..., Results], cases: list[Case]) -> None:
    shuffled = random.Random(1).sample(cases, len(cases))
    assert trainers(read(shuffled)) == trainers(read(cases))


def test_rows_and_columns(results: Results) -> None:
    assert precisions(results) == ["fp64", "fp32", "bf16", "fp16"]
    assert [trainer.name for trainer in trainers(results)][:2] == ["single", "ddp"]
    assert [path.name for path in trainers(results)[1].paths] == ["ddp-w2", "ddp-w2-acc2", "ddp-w4", "ddp-w2 on cuda"]


def test_what_did_not_run_is_last_and_shows_what_it_could_have_run(read: Callable[..., Results]) -> None:
    missing = synthetic.passing("apex_ddp", "ddp", 3, 1, "fp16", "line")
    cases = [
        synthetic.idle(synthetic.passing("apex_ddp", "ddp", 2, 1, "fp32", "line"), "UNSUPPORTED", "not declared"),
        synthetic.idle(missing, "UNAVAILABLE", "no apex"),
        synthetic.passing("ddp", "ddp", 4, 1, "fp32", "line"),
    ]
    first, last = trainers(read(cases))
    assert [first.name, last.name] == ["ddp", "apex_ddp"]
    assert [path.name for path in last.matrix] == ["ddp-w3"]


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (["PASS (exact)", "PASS (bounded)"], "PASS (bounded)"),
        (["PASS (exact)", "INCONCLUSIVE", "CRASH"], "CRASH"),
        (["PASS (exact)", "UNSUPPORTED"], "PASS (exact)"),
        (["UNSUPPORTED", "UNAVAILABLE"], "UNAVAILABLE"),
    ],
)
def test_a_cell_shows_the_worst_verdict_that_was_reached(verdicts: list[str], shown: str) -> None:
    assert worst(verdicts).verdict == shown


def test_each_verdict_is_of_one_kind() -> None:
    assert sorted(PASSED + NOT_CONFORMING + NOT_RUN) == sorted(LOOKS)
    assert len({look.key for look in LOOKS.values()}) == len({look.glyph for look in LOOKS.values()}) == 12


def test_one_cause_is_one_entry(results: Results) -> None:
    found = failures(results)
    assert sum(len(cause.cases) for cause in found) == results.failed
    summed = next(cause for cause in found if "adds up the micro-batches" in cause.text)
    assert len(summed.cases) == 4
    assert summed.example.id == "ddp-w2-acc2-fp32-line"


def test_one_reason_is_one_entry_and_the_counts_of_a_run_add_up(results: Results) -> None:
    found = [(reason.look.verdict, len(reason.cases)) for reason in reasons(results)]
    assert found == [("UNAVAILABLE", 5), ("UNAVAILABLE", 5), ("UNSUPPORTED", 4)]
    assert sum(count for _, count in found) == results.not_run
    assert sum(count for _, count in overall(results)) == len(results.cases)


@pytest.mark.parametrize(
    ("law", "ranks", "verdict", "title"),
    [
        ("acc/schedule-per-step", (1,), "DIVERGED", "On rank 1, the trainer skips or repeats a step of the schedule"),
        ("acc/schedule-per-step", (0, 1), "DIVERGED", "The trainer skips or repeats a step of the schedule"),
        ("acc/schedule-per-step", (1,), "FAIL (numerics)", "The trainer skips or repeats a step of the schedule"),
        # Judged for all ranks together.
        ("amp/same-scale-on-all-ranks", (1,), "DIVERGED", "The trainer scales the loss differently on each rank"),
    ],
)
def test_ranks_that_diverge_because_only_they_break_a_law_are_named(
    law: str, ranks: tuple[int, ...], verdict: str, title: str
) -> None:
    broken = Finding(law, "MUST", "It MUST.", "a", "b", "c", "x = 1", 1, ranks, where="train.py:9")
    plain = {**synthetic.passing("mine", "ddp", 2, 1, "fp32", "line"), "verdict": verdict}
    card = card_of(replace(record(CaseRecord, plain), findings=(broken,)))
    assert card.title.removesuffix(".") == title
    only = title.startswith("On")
    assert (("observed", "on rank 1, b") in card.facts, str(card.advice).startswith("on every rank, ")) == (only, only)
