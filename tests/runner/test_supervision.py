"""The state machine that waits for ranks, stops and releases them, with the tests' own clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from conformance.runner.case.supervision import DRIVER, Failure, Limits, Stop, Supervision

LIMITS = Limits(run=60.0, start=120.0, build=600.0, grace=2.0, leave=5.0)
#: Two ranks. Each line: a time in seconds, events > the resulting actions > the state afterwards.
SCENARIOS = {
    "both deliver and leave together": """
        1 >
        10 0 started, 1 started > AllStarted
        20 0 delivered >
        69.9 1 delivered > AllFinished, Release > is_over False
        74.8 0 has_exited, 1 has_exited > > is_over True, timed_out False, first_failed None""",
    "one hangs": """
        0 0 started, 1 started, 0 delivered > AllStarted
        59.9 >
        60 > stop 1 late: at the time limit of 60 s > timed_out True
        64.9 >
        64.9 1 delivered > AllFinished, Release > timed_out False""",
    "the time for a build does not count": """
        0 0 started, 1 started > AllStarted
        10 1 is_building > Building True
        60 >
        110 1 not is_building > Building False
        159.9 >
        160 > stop 0 1 late: at the time limit of 60 s""",
    "a build hangs": """
        0 0 started, 1 started, 1 is_building > AllStarted, Building True
        659.9 >
        660 > stop 0 1 late: at the time limit of 60 s""",
    "a build gives no time to start, nor after a failure": """
        119.9 0 is_building > Building True
        120 0 started, 1 dies > AllStarted, FirstFailure 1 False
        122 > stop 0: after rank 1 failed""",
    "one does not start": """
        120 0 started > stop 0 1 late: because it had not started after 120 s""",
    "the other rank has a grace period after a failure": """
        0 0 started, 1 started > AllStarted
        6 1 dies > FirstFailure 1 False
        7.9 >
        8 > stop 0: after rank 1 failed > timed_out False""",
    "the grace period is the same before the other rank has started": """
        1 1 dies > FirstFailure 1 False
        2 0 started > AllStarted
        3 > stop 0: after rank 1 failed""",
    "a death without a report comes before the exception of a peer": """
        0 0 started, 1 started > AllStarted
        5 0 raises > FirstFailure 0 True
        5.1 1 dies > FirstFailure 1 False, AllFinished, Release > first_failed 1""",
    "all fail": """
        1 0 dies, 1 dies > AllStarted, FirstFailure 0 False, AllFinished, Release > is_over True""",
    "one does not leave": """
        1 0 started, 0 delivered, 1 delivered, 1 has_exited > AllStarted, AllFinished, Release
        5.9 >
        6 > stop 0: because it did not leave after it delivered
        11 > stop 0: because it did not leave after it delivered > timed_out False""",
    "a driver that fails is named": f"""
        0 0 started, 1 started > AllStarted
        1 1 dies as driver > FirstFailure {DRIVER} False
        3 > stop 0: after the trainer's function failed""",
}
#: The same with more ranks on other machines, about which the front reports.
ELSEWHERE = {
    "ranks wait for the other machines": """
        0 0 started, 1 started > AllStarted
        1 0 delivered, 1 delivered > AllFinished
        50 >
        51 may_leave = True > Release
        55.9 >
        56 > stop 0 1: because it did not leave after it delivered""",
    "ranks have a grace period after a failure elsewhere": """
        0 0 started, 1 started > AllStarted
        1 failed_elsewhere = 3 >
        3 > stop 0 1: after rank 3 failed""",
    "a failure reported by the front counts as earlier": """
        1 0 started, 1 dies, failed_elsewhere = 3 > AllStarted, FirstFailure 1 False > first_failed 3""",
    "the front gives up": """
        0 0 started, 1 started > AllStarted
        1 given_up = "it took too long" > stop 0 1 late: it took too long > timed_out True
        1.1 >""",
}


@dataclass(eq=False)
class Rank:
    number: int
    started: bool = False
    delivered: bool = False
    has_exited: bool = False
    is_building: bool = False
    failure: Failure | None = None

    def does(self, what, now):
        match what:
            case ["dies" | "raises" as how, *driver]:
                self.has_exited = True
                self.failure = Failure(how == "raises", now, DRIVER if driver else self.number)
            case ["not", name]:
                setattr(self, name, False)
            case [name]:
                setattr(self, name, True)


@pytest.mark.parametrize("name", [*SCENARIOS, *ELSEWHERE])
def test_supervision(name):
    ranks = [Rank(0), Rank(1)]
    supervision = Supervision(ranks, LIMITS, 60.0, 0.0, may_leave=name in SCENARIOS)
    for line in (SCENARIOS | ELSEWHERE)[name].strip().splitlines():
        happens, done, *known = map(str.strip, line.strip().split(">"))
        now, _, events = happens.partition(" ")
        for event in filter(None, events.split(", ")):
            subject, *what = event.split()
            if subject.isdigit():
                ranks[int(subject)].does(what, float(now))
            else:
                setattr(supervision, subject, eval(event.partition(" = ")[2]))
        assert ", ".join(map(shown, supervision.advance(float(now)))) == done, line
        for fact in known[0].split(", ") if known else ():
            attribute, value = fact.split()
            assert str(getattr(supervision, attribute)) == value, line


def shown(action):
    if isinstance(action, Stop):
        members = " ".join(str(rank.number) for rank in action.members)
        return f"stop {members}{' late' * action.is_late}: {action.because}"
    return " ".join([type(action).__name__, *map(str, action)])
