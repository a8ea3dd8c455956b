"""Laws are counted where they were really checked, and one cause is one finding."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from conformance.laws import checking
from conformance.laws.checking import check, findings, violations, without_harmless
from conformance.laws.law import OK, Broken, Law, in_order, registered
from conformance.laws.subjects import Rank, Run, Window
from conformance.trace.events import Clip, Skip, Step

from .building import a_run, backward, event, forward, step


def double_steps(window):
    steps = window.of(Step)
    if len(steps) > 1:
        yield Broken(steps[1], "one step", "two steps", "one is enough", steps)
    elif steps:
        yield OK


def a_law(judges, says="A window MUST step once.", id="acc/by-hand", scope=Window, unless=()):
    return Law(id, says, "", "", judges=judges, scope=scope, unless=unless)


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
    assert finding.broken.event.line == "train.py:7"


def test_two_lines_are_two_findings(only):
    only(a_law(double_steps))
    [verified] = check(a_run([forward(0), backward(), twice(7), forward(1), backward(), twice(9)]))
    assert [finding.broken.event.line for finding in verified.findings] == ["train.py:7", "train.py:9"]


def test_what_has_nothing_to_check_is_not_exercised(only):
    only(a_law(double_steps))
    [verified] = check(a_run([forward(0), backward()]))
    assert (verified.checked, verified.findings) == (0, ())


def test_musts_come_first(only):
    only(a_law(double_steps, "A window SHOULD step once.", "acc/advice"), a_law(double_steps))
    found = findings(check(a_run([forward(0), backward(), twice(7)])))
    assert [finding.law.level for finding in found] == ["MUST", "SHOULD"]


def test_a_law_breaks_as_often_as_it_does(only):
    """One line may break it again and again. MUSTs come first."""
    should, must = a_law(double_steps, "A window SHOULD step once.", "acc/advice"), a_law(double_steps)
    only(should, must)
    rank = [forward(0), backward(), twice(7), forward(1), backward(), twice(7)]
    broken = violations(a_run(rank, [forward(0), backward(), step(), forward(1), backward(), twice(7)], backend="ddp"))
    where = [(0, 0), (0, 1), (1, 1)]
    assert [(each, how.event.rank, how.event.window) for each, how in broken] == [
        (each, *place) for each in (must, should) for place in where
    ]


def breaks(subject):
    """Each window of the run breaks it, or each rank, or the run."""
    events = subject.events if isinstance(subject, Window | Rank) else subject.ranks[0].events
    yield Broken(events[0], "", "", "", ())


def breaks_the_second(window):
    if window.number == 1 and window.rank.number == 0:
        yield Broken(window.events[0], "", "", "", ())


@pytest.mark.parametrize(
    ("scope", "better", "left"),
    [
        pytest.param(Window, (breaks_the_second, Window), 3, id="in the same window of the same rank"),
        pytest.param(Window, (breaks, Rank), 0, id="in the training of each rank"),
        pytest.param(Window, (breaks, Run), 0, id="in the run"),
        pytest.param(Rank, (breaks_the_second, Window), 1, id="in a window of the rank"),
        pytest.param(Run, (breaks_the_second, Window), 0, id="in a window of the run"),
    ],
)
def test_a_law_gives_way_where_a_better_one_is_broken(only, scope, better, left):
    judges, better_scope = better
    only(
        a_law(breaks, id="acc/vague", scope=scope, unless=("acc/clear",)),
        a_law(judges, id="acc/clear", scope=better_scope),
    )
    rank = [forward(0), backward(), step(), forward(1), backward(), step()]
    vague, _ = check(a_run(rank, rank, backend="ddp"))
    assert sum(finding.count for finding in vague.findings) == left


def test_laws_that_give_way_in_a_circle():
    one, other = a_law(breaks, id="acc/a", unless=("acc/b",)), a_law(breaks, id="acc/b", unless=("acc/a",))
    with pytest.raises(ValueError, match=r"laws in each other's `unless`: acc/[ab], acc/[ab]$"):
        in_order([one, other])
    with pytest.raises(ValueError, match="acc/a has unknown law 'acc/b' in `unless`"):
        in_order([one])


@pytest.mark.parametrize(
    ("id", "says", "complaint"),
    [
        ("nowhere/at-all", "It MUST.", "has no chapter"),
        ("acc/one-scale-per-window", "It MUST.", "two laws"),
        ("acc/vague", "It might.", "exactly one MUST or SHOULD"),
        ("acc/torn", "It MUST, or SHOULD.", "exactly one MUST or SHOULD"),
    ],
)
def test_a_law_that_cannot_be(id, says, complaint):
    checking.laws()
    with pytest.raises(ValueError, match=complaint):
        registered(Law(id, says, "", ""))


def test_a_law_judges_only_windows_with_an_event_that_it_needs(only):
    def judges(window):
        yield OK

    only(Law("acc/by-hand", "A window MUST step once.", "", "", judges=judges, scope=Window, needs=(Skip, Clip)))
    stepping, skipping = [backward(), step()], [backward(), event("skip")]
    [verified] = check(
        a_run([forward(0), stepping, forward(1), skipping], [forward(0), stepping, forward(1), stepping])
    )
    assert verified.checked == 1


def test_the_cyclic_collector_is_as_before_and_does_not_run_meanwhile(only):
    seen = []

    def judges(run):
        seen.append(gc.isenabled())
        yield OK

    only(a_law(judges, scope=Run))
    check(a_run([forward(0), backward(), step()]))
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_law_gives_way_to_right_numbers_unless_it_knows_how_another_run_goes_wrong(only):
    only(
        a_law(double_steps),
        replace(a_law(double_steps, id="acc/latent"), latent="The second step matters with momentum."),
        a_law(double_steps, "A window SHOULD step once.", "acc/advice"),
    )
    run = a_run([forward(0), backward(), twice(7)])
    assert [one.law.id for one in findings(check(run))] == ["acc/by-hand", "acc/latent", "acc/advice"]
    assert [one.law.id for one in findings(without_harmless(check(run)))] == ["acc/latent", "acc/advice"]


def test_a_law_that_raises_leaves_the_others_their_results(only):
    def raises(window):
        yield OK
        raise TypeError("'<' not supported between 'str' and 'float'")

    only(a_law(raises, id="acc/raises"), a_law(double_steps))
    raised, other = check(a_run([forward(0), backward(), twice(7)]))
    assert (raised.checked, "TypeError: '<' not supported" in raised.failure) == (0, True)
    assert (other.checked, other.failure) == (1, None)
