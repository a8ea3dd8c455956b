"""Runs Determined on this machine without a cluster: its channel between ranks, and its checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from determined import core, horovod, ipc

from conformance import Task


class UnixChannel(core.DistributedContext):
    """A channel for everything except gradients. Determined's own opens the same two TCP ports in every run."""

    name = ""

    def _init_ipc(self, force_tcp: bool) -> None:
        self.tempdir = None
        urls = f"ipc://@{self.name}-pub", f"ipc://@{self.name}-pull"
        end: ipc.ZMQBroadcastServer | ipc.ZMQBroadcastClient
        if self.rank == 0:
            end = self._chief_zmq = self._local_chief_zmq = ipc.ZMQBroadcastServer(self.size - 1, *urls)
        else:
            end = self._worker_zmq = self._local_worker_zmq = ipc.ZMQBroadcastClient(*urls)
        end.safe_start()


def distributed(task: Task) -> core.DistributedContext | None:
    """Does what the guide does before `pytorch.init`, by backend: the variable is for Determined's training loop."""
    if task.world_size == 1:
        return None
    if task.backend == "horovod":
        os.environ["USE_HOROVOD"] = "true"
        horovod.hvd.require_horovod_type("torch", "the case is for Horovod")
        horovod.hvd.init()
        UnixChannel.name = f"determined-{os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
        return UnixChannel.from_horovod(horovod.hvd)
    os.environ["USE_TORCH_DISTRIBUTED"] = "true"
    dist.init_process_group(task.collective_backend)
    UnixChannel.name = f"determined-{os.environ['MASTER_PORT']}"
    return UnixChannel.from_torch_distributed()


@contextmanager
def folder_for_checkpoint() -> Iterator[None]:
    """A temporary folder for the final checkpoint. The Trainer always writes one to the user's data folder, with a copy
    of the whole working directory."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = os.path.join(folder, "data")
        os.mkdir(empty := os.path.join(folder, "empty"))
        before = os.getcwd()
        os.chdir(empty)
        try:
            yield
        finally:
            os.chdir(before)
