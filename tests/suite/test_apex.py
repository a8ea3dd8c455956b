"""Cases of apex if it is not installed: they are listed with one reason, and never passed."""

from __future__ import annotations

import pytest

from conformance.suite.items import REFERENCE

TRAINERS = ("apex_single", "apex_ddp", "apex_horovod")


@pytest.fixture
def no_apex(tmp_path_factory, monkeypatch):
    """Hides apex, if this machine has it."""
    place = tmp_path_factory.mktemp("packages")
    (place / "apex.py").write_text("raise ModuleNotFoundError(\"No module named 'apex'\", name='apex')")
    monkeypatch.syspath_prepend(place)


@pytest.mark.usefixtures("no_apex")
def test_every_case_is_unavailable_for_one_reason(conformance, cases):
    assert set(TRAINERS) < set(REFERENCE)
    ended = conformance("run", *TRAINERS)
    asked = [case for case in cases().values() if case["precision"] == "apex-O1"]
    assert {case["trainer"] for case in asked} == set(TRAINERS)
    assert {case["device"] for case in asked} == {"cuda"}
    # Unsupported features are reported without apex.
    results = [case for case in asked if "undeclared" not in case]
    assert {case["verdict"] for case in results} == {"UNAVAILABLE"}
    [reason] = {case["headline"] for case in results}
    assert reason.startswith("no apex with amp is installed, and amp needs a GPU; install it with: pip install ")
    assert "cuda-horovod-w2-acc2-apex-O1-overflow" in {case["id"] for case in results}
    assert {case["verdict"] for case in cases().values()} == {"UNAVAILABLE", "UNSUPPORTED"}
    assert ended.code == 1
    assert "UNDECIDED: No case ran." in ended.out
