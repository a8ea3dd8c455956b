"""Fixtures of the runner's tests: small trainers in files, a small case, the process tree."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest

from conformance.runner.front.client import ForkServer, shared

LIMIT = 60.0
# The textbook loop that most tests vary; `{inside}` runs in each rank, after the process group is initialised.
TEMPLATE = """
import os, signal, sys, threading
from contextlib import nullcontext
import torch
import torch.distributed as dist
from conformance import Task, trainer
{before}

@trainer(backends=["single", "ddp"], precisions=["fp32", "fp16"])
def train(task: Task) -> None:
    model = wrapped = task.model()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = task.optimizer(model.parameters())
    scaler = task.grad_scaler()
{inside}
    for window in task.windows():
        optimizer.zero_grad()
        for number, batch in enumerate(window):
            last = number == len(window) - 1
            with nullcontext() if last or task.world_size == 1 else wrapped.no_sync():
                with task.autocast():
                    loss = task.loss(wrapped(batch.inputs), batch) / len(window)
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

HOROVOD = """
import horovod.torch as hvd
from conformance import Task, trainer

@trainer(backends=["horovod"])
def train(task: Task) -> None:
    hvd.init()
    model = task.model()
    optimizer = hvd.DistributedOptimizer(
        task.optimizer(model.parameters()), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
{inside}
    for batch in task.dataloader():
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
"""


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended():
    yield
    shared.close()


@pytest.fixture
def write(tmp_path):
    """Writes a trainer to a file; returns its target."""
    numbers = itertools.count()

    def write_trainer(inside="", before="", *, template=TEMPLATE):
        indented = textwrap.indent(textwrap.dedent(inside), "    ")
        path = tmp_path / f"trainer_{next(numbers)}.py"
        path.write_text(template.format(before=textwrap.dedent(before), inside=indented))
        return str(path)

    return write_trainer


@pytest.fixture
def horovod(write):
    """Writes a trainer for Horovod to a file; returns its target."""
    return lambda inside="": write(inside, template=HOROVOD)


@pytest.fixture
def ran(make_spec):
    """Runs one case of a trainer on a new server, by default with two ranks, or one if the backend is single."""

    def run(target, backend="ddp", world_size=None, limit=LIMIT):
        with ForkServer(target, backend) as server:
            return server.run(make_spec(backend, world_size or (1 if backend == "single" else 2)), limit)

    return run


@pytest.fixture
def alone(write, ran):
    """Runs one case with this code in its only rank; returns the rank."""
    return lambda inside="", before="": ran(write(inside, before), "single").ranks[0]


@pytest.fixture
def make_spec():
    """Makes the spec of a case of three steps, exact in every precision."""

    def make(backend="ddp", world_size=2, accumulation=1):
        count = world_size * accumulation * 2
        return {
            "case": f"{backend}-w{world_size}",
            "backend": backend,
            "world_size": world_size,
            "accumulation": accumulation,
            "micro_batch_size": 2,
            "steps": 3,
            "epochs": [0] * 3,
            "precision": "fp32",
            "loss": "mean",
            "device": "cpu",
            "model": {"kind": "linear", "features": 1, "bias": False, "weights": [[0.0]] * world_size},
            "samples": {
                "x": [[float(1 + number % 3)] for number in range(count)],
                "y": [float(number % 4) for number in range(count)],
                "weight": [1.0] * count,
            },
            "orders": [
                [
                    [[2 * (turn * world_size + rank) + k for k in range(2)] for turn in range(accumulation)]
                    for rank in range(world_size)
                ]
            ],
            "groups": [],
            "optimizer": {
                "kind": "sgd",
                "lr": 0.125,
                "momentum": 0.0,
                "dampening": 0.0,
                "nesterov": False,
                "weight_decay": 0.0,
            },
            "schedule": None,
            "clip": None,
            "scaler": None,
        }

    return make


@pytest.fixture
def descendants():
    """All processes below a given one, as their folders in /proc."""

    def parent(folder):
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def look(root):
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                children.setdefault(parent(folder), []).append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        found: dict[int, Path] = {}
        waiting = [root]
        while waiting:
            for child in children.get(waiting.pop(), []):
                found[child] = Path("/proc", str(child))
                waiting.append(child)
        return found

    return look
