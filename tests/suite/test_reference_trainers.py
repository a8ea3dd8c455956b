"""The engine end to end: the reference trainers pass on real DDP, real Horovod, real autocast and GradScaler."""

from __future__ import annotations

PATHS = {"accumulated": "single-acc2", "ddp": "ddp-w2", "horovod": "horovod-w2"}
CASES = [
    f"{path}-{precision}-{workload}"
    for path in ("single-acc2", "ddp-w2", "ddp-w2-acc2", "horovod-w2")
    for precision, workload in (("fp32", "momentum"), ("bf16", "clip-value"), ("fp16", "overflow"), ("fp32", "adamw"))
]


def test_they_pass(conformance, cases):
    ended = conformance("run", *PATHS, *(word for case in CASES for word in ("--case", case)))
    results = {id: case for (_, id), case in cases().items()}
    assert sorted(results) == sorted(CASES)
    verdicts = {id: (case["verdict"], case["headline"]) for id, case in results.items()}
    exact = {id for id in CASES if not id.endswith("adamw")}
    assert {id for id, (verdict, _) in verdicts.items() if verdict == "PASS (exact)"} == exact, verdicts
    assert {id for id, (verdict, _) in verdicts.items() if verdict == "PASS (bounded)"} == set(CASES) - exact, verdicts
    assert (ended.code, ended.err) == (0, "")
    assert "CONFORMS: All 16 cases passed." in ended.out
    for id, case in results.items():
        assert case.get("skips") == ([2] if id.endswith("overflow") else None)
        assert "first_difference" not in case
        assert all(rank["exit"] == "exited 0" for rank in case["ranks"])
