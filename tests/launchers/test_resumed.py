"""Checkpoints need one folder for all ranks."""

from types import SimpleNamespace

from conformance.cases.case import Case
from conformance.launchers.hosts import Hosts

CASE = Case("ddp", 2, 1, "fp32", "momentum", resumed_at=4)


def hosts(*names):
    front = SimpleNamespace(agents=[SimpleNamespace(name=name) for name in names], close=lambda: None)
    return Hosts("torchrun", front, 2)


def test_on_several_machines_no_case_is_resumed():
    assert "one folder for checkpoints" in hosts("one", "other").why_not(CASE)
    assert hosts("one", "one").why_not(CASE) is None
    assert hosts("one", "other").why_not(Case("ddp", 2, 1, "fp32", "momentum")) is None
