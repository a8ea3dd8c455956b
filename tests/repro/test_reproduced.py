"""Scripts fail for mutants of each kind, and pass for the correct trainer. `nox -s reproduced` runs more."""

from __future__ import annotations

import pytest

from fixtures.reproduced import cases_by_id, covering, right, tried
from fixtures.specimens import named

MUTANTS = named("mutants")
#: One for each quantity that a script checks, and for each way of starting.
SHOWN = [
    ("engine_forgets_momentum", "single-acc2-fp32-decay"),
    ("join_context_averages_every_micro_batch", "ddp-w2-acc2-fp32-uneven-ranks"),
    ("declares_join_and_drops_batch", "ddp-w2-fp32-uneven-ranks"),
    ("horovod_resumes_momentum_on_rank_0_alone", "horovod-w2-acc2-fp32-momentum-resumed-at-3"),
    ("exits_in_the_middle", "ddp-w2-fp32-momentum"),
]


@pytest.mark.parametrize(("mutant", "case"), SHOWN)
def test_shown_and_no_longer_once_it_is_right(mutant, case):
    found = tried(MUTANTS[mutant], case)
    assert found.how == "shown", found.why


@pytest.mark.parametrize(
    ("mutant", "case", "why"),
    [
        ("own_order_unseen", "single-acc2-fp32-own-order", "the case is undecided: the trainer chooses the order"),
        (
            "own_order_gradients_summed",
            "ddp-w2-acc2-fp32-own-order",
            "a script cannot know which samples the trainer should",
        ),
        (
            "no_sync_around_backward_only",
            "ddp-w2-acc2-fp32-momentum",
            "weights and gradients are correct, so a script has",
        ),
    ],
)
def test_what_is_declined_says_why(mutant, case, why):
    found = tried(MUTANTS[mutant], case)
    assert found.how == "declined"
    assert found.why.startswith(why)


def test_a_right_trainer_is_found_where_no_reference_trainer_has_the_case():
    trainer = right(MUTANTS["epoch_schedule_in_each_window"], cases_by_id()["single-acc2-fp32-epoch-schedule"])
    assert trainer.endswith(".py")


def test_the_sample_of_the_session_has_each_cause_and_each_law():
    sample = [mutant for mutant, _ in covering()]
    able = [mutant for mutant in MUTANTS.values() if not mutant.cannot_run and mutant.expected != "PASS"]
    assert {mutant.cause for mutant in sample} >= {mutant.cause for mutant in able}
    assert {law for mutant in sample for law in mutant.laws} == {law for mutant in able for law in mutant.laws}
