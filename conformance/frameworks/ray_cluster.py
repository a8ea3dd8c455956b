"""A Ray cluster of one machine, on loopback, shared by a trainer's cases: the session of both Ray trainers."""

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

# For workers, and the controller of Ray Train. Ray only counts these CPUs.
_CPUS = 8
# The minimum that Ray accepts, in bytes.
_OBJECT_STORE = 80 * 1024 * 1024


@contextmanager
def local_cluster() -> Iterator[dict[str, str]]:
    """Yields the input of `connected`."""
    token = _authenticate(secrets.token_hex(32))
    # Ray's sockets are in it, and a socket's name has at most 107 bytes.
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
    """Makes this process a driver of the session's cluster."""
    _authenticate(session["token"])
    # This actor of Ray Train watches for machines that the cluster is about to lose.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    with ray.init(address=session["address"], log_to_driver=True, _node_ip_address="127.0.0.1"):
        yield


def launch(job: Job, fit: Callable[[Task], None]) -> None:
    """Calls `fit` in every worker of a TorchTrainer, which enters the case with the job's ticket."""

    def train_loop_per_worker(ticket: dict[str, Any]) -> None:
        with enter(ticket, get_context().get_world_rank()) as task:
            fit(task)

    storage = str(job.checkpoint_dir or job.resume_from or job.session["folder"])
    # By its name a run finds its checkpoint. Without one, Ray generates a name.
    name = "resumed" if job.checkpoint_dir or job.resume_from else None
    run, scaling = RunConfig(storage_path=storage, name=name), ScalingConfig(num_workers=job.world_size)
    settings: Any = {"train_loop_config": job.ticket, "scaling_config": scaling, "run_config": run}
    with connected(job.session):
        TorchTrainer(train_loop_per_worker, **settings).fit()


def _authenticate(token: str) -> str:
    """Sets Ray's token; without one, Ray writes one to the user's home."""
    os.environ["RAY_AUTH_TOKEN"] = token
    return token
