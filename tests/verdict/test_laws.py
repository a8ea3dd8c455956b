"""What a broken law does to a verdict, and what a law that raises does."""

from __future__ import annotations

import pytest

from conformance.laws import checking
from conformance.laws.law import OK, Broken, Law
from conformance.laws.run import Window


@pytest.fixture
def judged_by(follow, monkeypatch):
    """The judgement of a right run by one law, whose judge is given."""

    def judged(judges, case="single-acc2-fp32-momentum", **more):
        law = Law("acc/by-hand", "A window MUST step.", "", "", judges=judges, scope=Window, **more)
        monkeypatch.setattr(checking, "laws", lambda: (law,))
        return follow(case).judged()

    return judged


def always(window):
    yield Broken(window.attempts[0], "this must not be", "it is forbidden", "it was", window.attempts)


def test_law_that_gives_way_to_right_numbers(judged_by):
    judgement = judged_by(always)
    assert (judgement.verdict, judgement.findings) == ("PASS (exact)", ())


def test_law_that_gives_way_to_bounded_numbers(judged_by):
    """In fp32 the least harm of a broken law would exceed the bound."""
    judgement = judged_by(always, case="single-acc2-fp32-adamw")
    assert (judgement.verdict, judgement.findings) == ("PASS (bounded)", ())


def test_law_whose_harm_a_bound_may_hide(judged_by):
    judgement = judged_by(always, case="single-acc2-bf16-adamw")
    assert judgement.verdict == "INCONCLUSIVE"
    assert judgement.headline.startswith("acc/by-hand: it was; what that does may be smaller than the error bound")
    assert {finding.law.id for finding in judgement.findings} == {"acc/by-hand"}


@pytest.mark.parametrize(("window", "verdict"), [(1, "PASS (bounded)"), (5, "INCONCLUSIVE")])
def test_numbers_before_a_law_was_broken_say_nothing(judged_by, window, verdict):
    """The first windows are exact, and the bounds of the last ones hide what a sixth of a gradient does."""

    def there(one):
        if one.number == window:
            yield from always(one)

    assert judged_by(there, case="ddp-w3-acc2-bf16-clip-norm").verdict == verdict


def test_law_that_knows_how_another_run_goes_wrong(judged_by):
    judgement = judged_by(always, latent="In another run it matters.")
    assert (judgement.verdict, judgement.headline) == ("FAIL (law)", "acc/by-hand: it was")


def test_law_that_raises(judged_by):
    def raises(window):
        yield OK
        raise TypeError("'<' not supported between 'str' and 'float'")

    judgement = judged_by(raises)
    assert judgement.verdict == "PASS (exact)"
    [verified] = judgement.laws
    assert (verified.checked, judgement.findings) == (0, ())
    assert "TypeError: '<' not supported" in (verified.failure or "")
