"""A Ray cluster of one machine, on loopback, that the cases of a trainer share: the session of both Ray trainers."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer

from conformance import Job, Task, enter

# Workers, and the controller of Ray Train. Ray counts these CPUs, it does not look for them.
_CPUS = 8
# The least that Ray takes, in bytes.
_OBJECT_STORE = 80 * 1024 * 1024


@contextmanager
def local_cluster() -> Iterator[dict[str, str]]:
    """Yields what `connected` needs."""
    token = _authenticate(secrets.token_hex(32))
    # Ray's sockets are in it, and the name of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="", ignore_cleanup_errors=True) as folder:
        context: Any = ray.init(
            num_cpus=_CPUS,
            num_gpus=0,
            object_store_memory=_OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            # The drivers' workers would be started for each of them, needed or not.
            _system_config={"enable_worker_prestart": False},
        )
        try:
            yield {"address": context.address_info["gcs_address"], "token": token, "folder": folder}
        finally:
            ray.shutdown()


@contextmanager
def connected(session: dict[str, Any]) -> Iterator[None]:
    """Inside, this process is a driver of the session's cluster."""
    _authenticate(session["token"])
    # An actor of Ray Train that watches for machines that the cluster is about to lose.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    with ray.init(address=session["address"], log_to_driver=True, _node_ip_address="127.0.0.1"):
        yield


def launch(job: Job, fit: Callable[[Task], None]) -> None:
    """Call `fit` in every worker of a TorchTrainer, which enters the case by the job's ticket."""

    def train_loop_per_worker(ticket: dict[str, Any]) -> None:
        with enter(ticket, get_context().get_world_rank()) as task:
            fit(task)

    storage = str(job.checkpoint_dir or job.resume_from or job.session["folder"])
    # By the name it finds what was saved. Without one, it makes one up.
    name = "resumed" if job.checkpoint_dir or job.resume_from else None
    run, scaling = RunConfig(storage_path=storage, name=name), ScalingConfig(num_workers=job.world_size)
    settings: Any = {"train_loop_config": job.ticket, "scaling_config": scaling, "run_config": run}
    with connected(job.session):
        TorchTrainer(train_loop_per_worker, **settings).fit()


def _authenticate(token: str) -> str:
    """Ray asks for a token where it finds one; where it finds none, it writes one to the user's home."""
    os.environ["RAY_AUTH_TOKEN"] = token
    return token
