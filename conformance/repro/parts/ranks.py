"""How the ranks of a script start, and what each does.

A script uses one of these functions as `launch`, which returns the results of `run` of all ranks, and one as `run`.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import tempfile
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from conformance.repro.parts.stand_in import Task
from conformance.repro.parts.values import GO_ON, LIMIT, STOP, WORLD_SIZE, train


def launch() -> list[Any]:
    return in_this_process()


def in_this_process() -> list[Any]:
    return [run(0)]


def in_processes(**life: Any) -> list[Any]:
    return spawned(start, free_port(), life)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def spawned(target: Any, *arguments: Any) -> list[Any]:
    found, ended = get_context("spawn").SimpleQueue(), list[Any]()
    spawn(target, (found, *arguments), WORLD_SIZE)
    while not found.empty():
        ended.append(found.get())
    if len(ended) < WORLD_SIZE:
        raise RuntimeError("a process exited with 0 before the end of training")
    return [values for _, values in sorted(ended)]


def start(rank: int, found: Any, port: int, life: dict[str, Any]) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE}
    nodes = {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in {**ranks, **nodes}.items()}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    found.put((rank, run(rank, **life)))


def under_horovod(**life: Any) -> list[Any]:
    """Starts ranks as horovod.run does, but only on loopback; its own servers listen on all interfaces."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    with RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0) as server:
        server.init(get_host_assignments(parse_hosts(f"localhost:{WORLD_SIZE}"), WORLD_SIZE))
        Thread(target=server.serve_forever, daemon=True).start()
        found = spawned(start_under_horovod, server.server_port, life)
        server.shutdown()
    return found


def start_under_horovod(rank: int, found: Any, port: int, life: dict[str, Any]) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "SIZE": WORLD_SIZE, "LOCAL_SIZE": WORLD_SIZE}
    nodes = {"CROSS_RANK": 0, "CROSS_SIZE": 1, "HOSTNAME": "localhost"}
    gloo = {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": port, "GLOO_IFACE": "lo"}
    more = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "FUSION_THRESHOLD": 2 * 2**20}
    os.environ |= {f"HOROVOD_{name}": str(value) for name, value in {**ranks, **nodes, **gloo, **more}.items()}
    found.put((rank, run(rank, **life)))


def in_one_life(**life: Any) -> list[Any]:
    return in_processes(**life)


def resumed() -> list[Any]:
    """Trains, stops, and resumes in other processes."""
    with tempfile.TemporaryDirectory() as name:
        in_one_life(**STOP, checkpoint_dir=Path(name), resume_from=None)
        return in_one_life(**GO_ON, resume_from=Path(name))


def resumed_twice() -> list[Any]:
    """Trains, stops, and resumes twice from the same checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        in_one_life(**STOP, checkpoint_dir=Path(name), resume_from=None)
        in_one_life(**GO_ON, resume_from=Path(name))
        return in_one_life(**GO_ON, resume_from=Path(name))


def run(rank: int, **life: Any) -> list[float]:
    """Returns the weights after the last step."""
    torch.set_num_threads(1)
    task = Task(rank, **life)
    train(task)
    return task.weights()


def run_within_limit(rank: int, **life: Any) -> list[float]:
    """Ends a rank that hangs, and shows where."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    train(Task(rank, **life))
    faulthandler.cancel_dump_traceback_later()
    return []


def run_for_gradients(rank: int, **life: Any) -> list[float]:
    """Returns the gradients that the last step used."""
    torch.set_num_threads(1)
    task, found = Task(rank, **life), list[float]()

    def note(*_: Any) -> None:
        parameters = list(task.models[0].parameters())
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        found[:] = [float(one) for gradient in gradients for one in gradient.detach().to_dense().flatten()]

    register_optimizer_step_pre_hook(note)
    train(task)
    return found


def run_sharded(rank: int, **life: Any) -> list[float]:
    """Returns the weights after the last step, gathered from their shards."""
    torch.set_num_threads(1)
    task, found = Task(rank, **life), list[float]()

    def note(*_: Any) -> None:
        whole = [getattr(one, "full_tensor", lambda one=one: one)() for one in task.models[0].parameters()]
        found[:] = [float(one) for tensor in whole for one in tensor.detach().flatten()]

    register_optimizer_step_post_hook(note)
    train(task)
    return found
