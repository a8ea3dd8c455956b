"""When to wait for ranks, to stop them and to release them: the state machine, by a clock that the tests set."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from conformance.runner.case.supervision import (
    DRIVER,
    START_LIMIT,
    AllFinished,
    AllStarted,
    Building,
    Failure,
    FirstFailure,
    Limits,
    Phase,
    Release,
    Stop,
    Supervision,
)

LIMITS = Limits(run=60.0, start=120.0, build=600.0, grace=2.0, leave=5.0)


@dataclass(eq=False)
class Rank:
    started: bool = False
    delivered: bool = False
    has_exited: bool = False
    is_building: bool = False
    failure: Failure | None = None

    def dies(self, rank, at, *, raised=False):
        self.has_exited = True
        self.failure = Failure(raised, at, rank)


class Case:
    """Two ranks, started at 0 by the clock."""

    def __init__(self, *, may_leave=True):
        self.ranks = self.zero, self.one = Rank(), Rank()
        self.supervision = Supervision(self.ranks, LIMITS, 60.0, 0.0, may_leave=may_leave)

    def at(self, now):
        return list(self.supervision.advance(now))

    def start(self, now):
        self.zero.started = self.one.started = True
        assert self.at(now) == [AllStarted()]


@pytest.fixture
def case():
    return Case()


def test_ranks_that_deliver_leave_together(case):
    assert case.at(1.0) == []
    case.start(10.0)
    assert case.supervision.deadline == 70.0
    case.zero.delivered = True
    assert case.at(20.0) == []
    case.one.delivered = True
    assert case.at(21.0) == [AllFinished(), Release()]
    assert case.supervision.phase is Phase.RELEASED
    assert not case.supervision.is_over
    case.zero.has_exited = case.one.has_exited = True
    assert case.at(22.0) == []
    assert case.supervision.is_over and not case.supervision.timed_out
    assert case.supervision.first_failed is None


def test_ranks_that_hang(case):
    case.start(0.0)
    case.zero.delivered = True
    assert case.at(59.9) == []
    assert case.at(60.0) == [Stop((case.one,), "at the time limit of 60 s", is_late=True)]
    assert case.supervision.timed_out
    assert case.supervision.deadline == 65.0
    # Nothing of a stopped rank is held against it.
    case.one.delivered = True
    assert not case.supervision.timed_out


def test_time_for_builds_does_not_count(case):
    case.start(0.0)
    case.one.is_building = True
    assert case.at(10.0) == [Building(True)]
    # The clock of the case stands still at 10.
    assert case.at(60.0) == []
    case.one.is_building = False
    assert case.at(110.0) == [Building(False)]
    assert case.supervision.deadline == 160.0
    assert case.at(159.9) == []
    assert case.at(160.0) == [Stop(case.ranks, "at the time limit of 60 s", is_late=True)]


def test_a_build_that_hangs(case):
    case.start(0.0)
    case.one.is_building = True
    case.at(0.0)
    assert case.at(659.9) == []
    assert case.at(660.0) == [Stop(case.ranks, "at the time limit of 60 s", is_late=True)]


def test_a_build_gives_ranks_no_time_to_start_or_after_a_failure(case):
    case.zero.is_building = True
    assert case.at(START_LIMIT - 0.1) == [Building(True)]
    case.zero.started = True
    case.one.dies(1, at=START_LIMIT)
    case.at(START_LIMIT)
    assert case.at(START_LIMIT + 2.0) == [Stop((case.zero,), "after rank 1 failed", is_late=False)]


def test_ranks_that_do_not_start(case):
    case.zero.started = True
    assert case.at(START_LIMIT) == [Stop(case.ranks, "because it had not started after 120 s", is_late=True)]


def test_a_failure_leaves_the_others_a_moment(case):
    case.start(0.0)
    case.one.dies(1, at=5.0)
    assert case.at(6.0) == [FirstFailure(1, raised=False)]
    assert case.supervision.deadline == 8.0
    assert case.at(8.0) == [Stop((case.zero,), "after rank 1 failed", is_late=False)]
    assert not case.supervision.timed_out


def test_a_failure_before_others_have_started_leaves_them_no_longer(case):
    case.one.dies(1, at=1.0)
    assert case.at(1.0) == [FirstFailure(1, raised=False)]
    case.zero.started = True
    assert case.at(2.0) == [AllStarted()]
    assert case.supervision.phase is Phase.FAILED
    assert case.at(3.0) == [Stop((case.zero,), "after rank 1 failed", is_late=False)]


def test_a_death_without_a_report_comes_before_exceptions_of_peers(case):
    case.start(0.0)
    case.zero.dies(0, at=5.0, raised=True)
    assert case.at(5.0) == [FirstFailure(0, raised=True)]
    case.one.dies(1, at=5.1)
    assert case.at(5.1)[0] == FirstFailure(1, raised=False)
    assert case.supervision.first_failed == 1


def test_all_that_failed_are_released(case):
    case.zero.dies(0, at=1.0)
    case.one.dies(1, at=1.0)
    assert case.at(1.0) == [AllStarted(), FirstFailure(0, raised=False), AllFinished(), Release()]
    assert case.supervision.is_over


def test_a_rank_that_does_not_leave(case):
    case.start(0.0)
    case.zero.delivered = case.one.delivered = case.one.has_exited = True
    case.at(1.0)
    assert case.at(5.9) == []
    because = "because it did not leave after it delivered"
    assert case.at(6.0) == [Stop((case.zero,), because, is_late=False)]
    assert case.at(11.0) == [Stop((case.zero,), because, is_late=False)]
    assert not case.supervision.timed_out


def test_a_driver_that_fails_is_named(case):
    case.start(0.0)
    case.one.dies(DRIVER, at=1.0)
    case.at(1.0)
    assert case.at(3.0) == [Stop((case.zero,), "after the trainer's function failed", is_late=False)]


class TestRanksThatHaveOthersElsewhere:
    @pytest.fixture
    def case(self):
        return Case(may_leave=False)

    def test_they_wait_for_the_others(self, case):
        case.start(0.0)
        case.zero.delivered = case.one.delivered = True
        assert case.at(1.0) == [AllFinished()]
        assert case.at(50.0) == []
        case.supervision.may_leave = True
        assert case.at(51.0) == [Release()]
        assert case.supervision.deadline == 56.0

    def test_a_failure_elsewhere_leaves_them_a_moment(self, case):
        case.start(0.0)
        case.supervision.failed_elsewhere = 3
        assert case.at(1.0) == []
        assert case.at(3.0) == [Stop(case.ranks, "after rank 3 failed", is_late=False)]

    def test_a_failure_reported_by_the_front_counts_before_those_here(self, case):
        case.start(0.0)
        case.one.dies(1, at=1.0)
        case.supervision.failed_elsewhere = 3
        assert case.at(1.0) == [FirstFailure(1, raised=False)]
        assert case.supervision.first_failed == 3

    def test_they_stop_when_the_front_gives_up(self, case):
        case.start(0.0)
        case.supervision.given_up = "at the time limit of 60 s"
        assert case.at(1.0) == [Stop(case.ranks, "at the time limit of 60 s", is_late=True)]
        assert case.at(1.1) == []
        assert case.supervision.timed_out
