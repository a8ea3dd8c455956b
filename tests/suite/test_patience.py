"""After a few hangs in a row, a trainer's other cases are not run."""

from __future__ import annotations

from conformance.suite.servers import ENOUGH, Patience

KIND, OTHER = ("t.py", "ddp"), ("t.py", "single")
HERE, THERE = frozenset({"t.py:12", None}), frozenset({"t.py:40"})
CASES = [f"single-{path}-fp32-momentum" for path in ("batched", "acc2", "acc3", "acc4")]


def lost(places, kind=KIND):
    patience = Patience()
    for place in places:
        patience.note(KIND, place)
    return patience.lost_with(kind)


def test_a_few_identical_hangs_are_enough():
    assert lost([HERE] * (ENOUGH - 1)) is None
    assert lost([HERE] * ENOUGH) == "3 cases of t.py on ddp in a row hung in the same place at t.py:12"
    assert lost([THERE, None] + [HERE] * ENOUGH) is not None


def test_others_are_run():
    """After hangs on another backend, in several places, or with a case in between that ended."""
    assert lost([HERE] * ENOUGH, OTHER) is None
    assert lost([HERE, THERE] * ENOUGH) is None
    assert lost([HERE, HERE, None, HERE, HERE]) is None


def test_the_rest_is_reported_as_not_run(conformance, write, cases):
    target = write("time.sleep(600)", name="hangs.py")
    chosen = [word for case in CASES for word in ("--case", case)]
    ended = conformance("run", target, *chosen, "--time-limit", "1", "--verbose")
    assert [case["verdict"] for case in cases().values()] == ["HANG", "HANG", "HANG", "NOT RUN"]
    assert (ended.code, ended.err) == (1, "")
    reason = "3 cases of hangs.py on single in a row hung in the same place at hangs.py:10; --case runs"
    assert cases()["hangs", CASES[3]]["headline"].startswith(reason)
    assert f"NOT RUN 1 case: {reason}" in " ".join(ended.out.split())
