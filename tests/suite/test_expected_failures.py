"""Failures that a project expects: names that match a case, and expectations that were not met."""

from __future__ import annotations

from pathlib import Path

from conformance.suite.configuration import Configuration, expectation, judged

from ..results.conftest import results, results_file

__all__ = ["results", "results_file"]


def test_an_id_and_a_cause_stand_for_a_case(results):
    law = next(case for case in results.cases if any(finding.level == "MUST" for finding in case.findings))
    bug = next(case for case in results.cases if case.explained_by)
    must = next(finding.law for finding in law.findings if finding.level == "MUST")
    assert expectation(law, [must]) == must
    assert expectation(bug, [bug.explained_by[0]]) == bug.explained_by[0]
    assert expectation(bug, [bug.id]) == bug.id
    assert expectation(bug, [f"{bug.trainer}:{bug.id}"]) == f"{bug.trainer}:{bug.id}"
    assert expectation(bug, ["another", must]) is None
    broken = next(case for case in results.cases if any(not guard.holds for guard in case.guards))
    guard, holds = (next(one.name for one in broken.guards if one.holds is truth) for truth in (False, True))
    assert expectation(broken, [guard, holds]) == guard
    assert expectation(broken, [holds]) is None


def test_those_that_fail_are_counted_and_those_that_hold_are_wrong(results):
    fails = next(case for case in results.cases if case.failed)
    passes = next(case for case in results.cases if case.verdict == "PASS (exact)")
    names = {f"{case.trainer}:{case.id}": "why" for case in (fails, passes)}
    found = judged(results.cases, Configuration(Path("p.toml"), {}, names), whole=True)
    assert found.cases == 1
    [line] = found.wrong
    assert line == (
        f"{passes.trainer}:{passes.id} passed, but a failure is expected; remove "
        f'"{passes.trainer}:{passes.id}" from [tool.conformance.expected-failures] in p.toml'
    )


def test_what_matches_nothing_is_wrong_unless_a_part_was_run(results):
    nothing = Configuration(Path("p.toml"), {}, {"acc/none": "why"})
    assert judged(results.cases, nothing, whole=False).wrong == ()
    [line] = judged(results.cases, nothing, whole=True).wrong
    assert line.startswith("no case has the id or problem acc/none; correct or remove")


def test_what_does_not_run_is_neither(results):
    idle = next(case for case in results.cases if case.verdict == "UNAVAILABLE")
    found = judged([idle], Configuration(Path("p.toml"), {}, {idle.id: "why"}), whole=True)
    assert (found.cases, found.wrong) == (0, ())
