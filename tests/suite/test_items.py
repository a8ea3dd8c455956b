"""Collected items, and the servers that they start."""

from __future__ import annotations

import pkgutil

import pytest

from conformance import trainers
from conformance.adapter.declaration import BACKEND_NAMES
from conformance.suite.items import REFERENCE, collect
from conformance.suite.servers import Servers


class Counted(Servers):
    """Servers that record requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[str, str]] = set()

    def get(self, target, backend):
        self.asked.add((target, backend))
        return super().get(target, backend)


def test_no_server_is_started_for_another_backend():
    servers = Counted()
    items = collect(servers, [], ["ddp"], [])
    servers.close()
    assert servers.asked == {("ddp", "ddp"), ("apex_ddp", "ddp"), ("averaged", "ddp")}
    assert {item.target for item in items} == {"ddp", "apex_ddp", "averaged"}


def test_every_reference_trainer_is_asked_for_what_it_declares():
    servers = Counted()
    items = collect(servers, [], [], [])
    servers.close()
    assert {target for target, _ in servers.asked} == set(REFERENCE)
    assert {item.case.backend for item in items} == {backend for _, backend in servers.asked}
    assert {backend for _, backend in servers.asked} <= set(BACKEND_NAMES)


def test_every_trainer_of_the_package_that_is_no_frameworks_is_one_of_the_reference_trainers():
    """`conformance run` without arguments runs them."""
    modules = pkgutil.iter_modules(trainers.__path__)
    assert set(REFERENCE) == {module.name for module in modules}


class Refusing(Servers):
    """Servers on a machine that refuses bf16."""

    def get(self, target, backend):
        server = super().get(target, backend)
        server.refused = {"bf16": "not here"}
        return server


def test_a_precision_that_the_machine_refuses_is_unavailable():
    servers = Refusing()
    items = [item for item in collect(servers, ["batched"], [], []) if item.case.device == "cpu"]
    servers.close()
    told = {(item.verdict, item.reason) for item in items if item.case.precision == "bf16"}
    assert told == {("UNAVAILABLE", "not here")}
    assert "UNAVAILABLE" not in {item.verdict for item in items if item.case.precision == "fp32"}


class WithGpus(Servers):
    """Servers on a machine with ``devices`` GPUs."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.devices = devices

    def get(self, target, backend):
        server = super().get(target, backend)
        server.gpus = {"devices": self.devices, "reason": None}
        return server


@pytest.mark.parametrize(("devices", "reach"), [(1, 1), (2, 2), (3, 3)])
def test_messages_of_a_gpu_need_one_for_each_rank(devices, reach):
    """On one H100 the cases of all three message-passing paths aborted in gloo, while those of DDP passed."""
    servers = WithGpus(devices)
    items = [item for item in collect(servers, ["ring", "ddp"], [], []) if item.case.device == "cuda"]
    servers.close()
    unavailable = {(item.case.backend, item.case.world_size) for item in items if item.verdict == "UNAVAILABLE"}
    assert unavailable == {("ring", world_size) for world_size in (2, 3, 4) if world_size > reach}
    [reason, *_] = [item.reason for item in items if item.verdict == "UNAVAILABLE"]
    assert f"only {'one is' if devices == 1 else f'{devices} are'} available" in reason
