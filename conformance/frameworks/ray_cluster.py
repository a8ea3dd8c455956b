"""A Ray cluster of one machine, on loopback, that the cases of a trainer share: the session of both Ray trainers."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

# Workers, and the controller of Ray Train. Ray counts these CPUs, it does not look for them.
_CPUS = 8
# The least that Ray takes, in bytes.
_OBJECT_STORE = 80 * 1024 * 1024


@contextmanager
def local_cluster() -> Iterator[dict[str, str]]:
    """Yields what `connected` needs."""
    token = _authenticate(secrets.token_hex(32))
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
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
    with ray.init(address=session["address"], log_to_driver=True, _node_ip_address="127.0.0.1"):
        yield


def _authenticate(token: str) -> str:
    """Ray asks for a token where it finds one; where it finds none, it writes one to the user's home."""
    os.environ["RAY_AUTH_TOKEN"] = token
    return token
