"""Ranks that run out of data before others, which they help on or leave alone."""

from __future__ import annotations

import pytest

from conformance.oracle.accepted_readings import CountsJoinedRanks
from conformance.oracle.faults.averaging import WorldDividedTwice
from conformance.oracle.faults.short_windows import AveragedAgain
from conformance.oracle.recurrence import Recurrence
from conformance.verdict.judge import judge

CASE = "ddp-w2-fp32-uneven-ranks"
CASES = (CASE, "ddp-w2-acc2-fp32-uneven-ranks", "ddp-w4-fp32-uneven-ranks")
LAST = 5
DECLARED = {"last_batch": "join"}


@pytest.fixture
def joining(follow):
    """A run in which ranks that have run out of data answer the others, but take no step. They get the weights at the
    end."""

    def made(name, recurrence=Recurrence):
        run = follow(name, recurrence)
        for rank, share in enumerate(run.case.problem.windows[-1].shares):
            if not share:
                run.remove(run.of("step", rank)[LAST], run.of("zero_grad", rank)[LAST])
        return numbered(run)

    return made


def numbered(run):
    for events in run.ranks:
        events[:] = [{**event, "seq": seq} for seq, event in enumerate(events)]
    return run


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("recurrence", "way"), [(Recurrence, "joined_ranks=left out"), (CountsJoinedRanks, "joined_ranks=counted")]
)
def test_either_divisor_is_right_and_told(joining, follow, name, recurrence, way):
    for run in (joining(name, recurrence), follow(name, recurrence)):
        judgement = judge(run.case, run.outcome(), DECLARED)
        assert judgement.verdict == "PASS (exact)", judgement.headline
        assert judgement.headline == "6 steps, weights and gradients bit-identical to the oracle on every rank"
        assert [one.way for one in judgement.behaviour] == ["last_batch=join", way]


@pytest.mark.parametrize("name", CASES)
def test_old_weights_at_the_end(joining, name):
    run = joining(name)
    before = run.of("step", 0)[4]["weights"]
    run.of("finished", len(run.ranks) - 1)[0]["weights"] = before
    judgement = run.judged()
    assert (judgement.verdict, judgement.divergence.window) == ("DIVERGED", LAST)
    assert judgement.suspects.explained_by == ("left-behind",)


def test_data_that_no_rank_uses(joining):
    run = joining(CASE)
    for events in run.ranks:
        events[:] = [one for one in events if one["window"] != LAST or one["event"] == "finished"]
    for rank in (0, 1):
        run.of("finished", rank)[0]["weights"] = run.of("step", 0)[4]["weights"]
    judgement = judge(run.case, run.outcome(), DECLARED)
    assert judgement.verdict == "FAIL (law)", judgement.headline
    assert judgement.headline == 'the trainer sets last_batch="join", but drops a smaller last batch'
    assert judgement.reason.advice.endswith("else let the ranks with data left continue, as torch's `Join` does")


def test_a_smaller_batch_is_used_by_who_joins_ranks(follow):
    run = follow("ddp-w2-fp32-uneven-batch")
    judgement = judge(run.case, run.outcome(), DECLARED)
    assert (judgement.verdict, judgement.ways) == ("PASS (exact)", ("last_batch=use",))


def test_a_fault_is_told_whatever_the_divisor(joining):
    """Before ranks have run out of data all windows show it; after that the divisor is open."""

    class TwiceAndCounted(WorldDividedTwice):
        def over_ranks(self, window):
            return super().over_ranks(window) * window.with_data / window.world_size

    judgement = joining(CASE, TwiceAndCounted).judged()
    assert "world-divided-twice" in judgement.suspects.explained_by
    assert "sum-over-ranks" in judgement.suspects.ruled_out


def test_what_only_the_last_window_shows(joining):
    judgement = joining(CASES[1], AveragedAgain).judged()
    assert (judgement.verdict, judgement.suspects.explained_by) == ("FAIL (numerics)", ("averaged-again",))


def test_a_difference_is_told_from_the_nearest_right_answer(joining):
    run = joining(CASE, CountsJoinedRanks)
    for rank in (0, 1):
        run.of("finished", rank)[0]["weights"][3] += 1.0
    difference = run.judged().difference
    assert (difference.step, difference.quantity, difference.index) == (5, "weights", 3)


class TestRanksThatDealThemselves:
    """Each reads one micro-batch of a last window that the plan gives to rank 0 as a whole."""

    NAME = "ddp-w2-acc2-fp32-uneven-ranks"

    def dealt(self, follow, recurrence=Recurrence):
        run = follow(self.NAME, recurrence)
        second = [event for event in run.ranks[0] if (event["window"], event["micro_batch"]) == (LAST, 1)]
        own = [event for event in second if event["event"] not in ("collective", "step", "zero_grad")]
        run.before(run.of("collective", 1)[-1], *({**event, "rank": 1} for event in own))
        run.remove(*own)
        return numbered(run)

    def test_a_window_that_is_short_on_every_rank(self, follow):
        judgement = self.dealt(follow).judged()
        assert (judgement.verdict, judgement.ways) == ("PASS (exact)", ("last_window=step",)), judgement.headline

    def test_and_divided_by_the_nominal_length(self, follow):
        judgement = self.dealt(follow, CountsJoinedRanks).expect("FAIL (numerics)")
        # The window before has the nominal length.
        assert judgement.suspects.explained_by == ("nominal-length", "total-of-window-before")
