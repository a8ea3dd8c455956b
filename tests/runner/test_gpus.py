"""Which GPUs ranks can use: those of the machine, unless their backend was built without CUDA."""

from __future__ import annotations

import horovod.torch as hvd
import pytest

from conformance.runner.front.client import ForkServer, shared

MACHINE = {"devices": 2, "reason": None}
WITHOUT = "Horovod was built without CUDA; build it again, next to a torch that has CUDA"


@pytest.mark.parametrize("trainer", ["batched", "horovod"])
def test_a_backend_without_cuda_uses_none(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.get(), "gpus", MACHINE)
    backend = "horovod" if trainer == "horovod" else "single"
    usable = backend == "single" or hvd.cuda_built()
    with ForkServer(trainer, backend) as server:
        assert server.gpus == (MACHINE if usable else {"devices": 0, "reason": WITHOUT})
