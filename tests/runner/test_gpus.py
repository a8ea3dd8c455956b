"""Ranks can use the GPUs of the machine, unless their backend was built without CUDA. Processes that fork count GPUs
without starting CUDA."""

from __future__ import annotations

import os

import horovod.torch as hvd
import pytest
import torch

from conformance.runner.front.client import ForkServer, shared
from conformance.runner.zygote import forking
from conformance.runner.zygote.forking import gpus

MACHINE = {"devices": 2, "reason": None}
WITHOUT = "Horovod was built without CUDA; rebuild it with a torch that has CUDA"


@pytest.mark.parametrize("trainer", ["batched", "horovod"])
def test_a_backend_without_cuda_uses_none(trainer, monkeypatch):
    monkeypatch.setattr(shared.get(), "gpus", MACHINE)
    backend = "horovod" if trainer == "horovod" else "single"
    usable = backend == "single" or hvd.cuda_built()
    with ForkServer(trainer, backend) as server:
        assert server.gpus == (MACHINE if usable else {"devices": 0, "reason": WITHOUT})


@pytest.fixture
def cuda_build(monkeypatch):
    """A torch that claims to be built with CUDA."""
    monkeypatch.setattr(torch.version, "cuda", "13.2")


@pytest.mark.usefixtures("cuda_build")
@pytest.mark.parametrize("count", [0, 2])
def test_a_child_counts_the_gpus(count, monkeypatch):
    """Without NVML, torch asks the CUDA runtime, after which no fork can use CUDA."""
    us = os.getpid()

    def device_count():
        assert os.getpid() != us
        return count

    monkeypatch.setattr(torch.cuda, "device_count", device_count)
    assert gpus() == {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}


@pytest.mark.usefixtures("cuda_build")
def test_a_torch_that_cannot_count_gpus_has_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: os._exit(99))
    assert gpus() == {"devices": 0, "reason": "torch cannot count the CUDA devices: torch.cuda.device_count() fails"}


@pytest.mark.usefixtures("cuda_build")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("is_spoilt", [False, True])
def test_without_a_gpu_forks_are_safe_for_cuda(is_spoilt, count, monkeypatch):
    """Many trainers call `torch.cuda.is_available()` on import, after which children cannot use CUDA."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: is_spoilt)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(forking, "_other_threads", list)
    unsafe = forking.Unsafe("CUDA initialised", "Use CUDA") if is_spoilt and count else None
    assert forking.why_not_fork() == unsafe
