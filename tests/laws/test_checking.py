"""Laws are counted where they were really checked, and one cause is one finding."""

from __future__ import annotations

import pytest

from conformance.laws import checking
from conformance.laws.checking import breaks, check, findings
from conformance.laws.law import Broken, Law, broken, kept, law

from .building import a_run, backward, forward, step


def double_steps(run):
    for window in run.windows:
        steps = window.of("step")
        if len(steps) > 1:
            yield broken(window, Broken(steps[1], "one step", "one is enough", "there were two", steps))
        elif steps:
            yield kept(window)


def a_law(checks, says="A window MUST step once."):
    return Law("acc/by-hand", says, "", "", "", checks)


@pytest.fixture
def only(monkeypatch):
    def hold(*laws):
        monkeypatch.setattr(checking, "laws", lambda: laws)

    return hold


def twice(line):
    return [step(where=["train.py", line, "f"]), step(where=["train.py", line, "f"])]


def test_one_line_that_breaks_a_law_in_every_window_of_every_rank_is_one_finding(only):
    only(a_law(double_steps))
    rank = [forward(0), backward(), twice(7), forward(1), backward(), twice(7)]
    [verified] = check(a_run(rank, rank, backend="ddp"))
    [finding] = verified.findings
    assert (verified.checked, finding.count, finding.ranks, finding.window) == (4, 4, (0, 1), 0)
    assert finding.broken.event.place == "train.py:7"


def test_two_lines_are_two_findings(only):
    only(a_law(double_steps))
    [verified] = check(a_run([forward(0), backward(), twice(7), forward(1), backward(), twice(9)]))
    assert [finding.broken.event.place for finding in verified.findings] == ["train.py:7", "train.py:9"]


def test_what_has_nothing_to_check_is_not_exercised(only):
    only(a_law(double_steps))
    [verified] = check(a_run([forward(0), backward()]))
    assert (verified.checked, verified.findings) == (0, ())


def test_musts_come_first(only):
    only(a_law(double_steps, "A window SHOULD step once."), a_law(double_steps))
    found = findings(check(a_run([forward(0), backward(), twice(7)])))
    assert [finding.law.level for finding in found] == ["MUST", "SHOULD"]


def test_a_law_breaks_as_often_as_it_does(only):
    """One line may break it again and again. MUSTs come first."""
    should, must = a_law(double_steps, "A window SHOULD step once."), a_law(double_steps)
    only(should, must)
    rank = [forward(0), backward(), twice(7), forward(1), backward(), twice(7)]
    broken = breaks(a_run(rank, [forward(0), backward(), step(), forward(1), backward(), twice(7)], backend="ddp"))
    where = [(0, 0), (0, 1), (1, 1)]
    assert [(each, how.event.rank, how.event.window) for each, how in broken] == [
        (each, *place) for each in (must, should) for place in where
    ]


def test_a_contradiction_reads_as_one_sentence_and_its_opposite():
    event = a_run([step()]).ranks[0].events[0]
    told = Broken(event, "A must come before B", "B needs it", "B (train.py:1) came before A (train.py:2)", ())
    assert told.contradiction == (
        "A must come before B, because B needs it. However, B (train.py:1) came before A (train.py:2): a contradiction."
    )


@pytest.mark.parametrize(
    ("id", "says", "complaint"),
    [
        ("nowhere/at-all", "It MUST.", "is of no chapter"),
        ("acc/one-scale-per-window", "It MUST.", "two laws"),
        ("acc/vague", "It might.", "exactly one MUST or SHOULD"),
        ("acc/torn", "It MUST, or SHOULD.", "exactly one MUST or SHOULD"),
    ],
)
def test_a_law_that_cannot_be(id, says, complaint):
    checking.laws()
    with pytest.raises(ValueError, match=complaint):
        law(id, says, why="", source="", mend="")
