"""Two hosts on one machine: two processes, as a launcher would start them, that connect over loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from conformance.runner.front.client import shared

LIMIT = 600

#: `{inside}` runs in each rank, after the process group is initialised.
TEMPLATE = """
import os, signal, time
from pathlib import Path
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from conformance import Task, trainer

@trainer(backends=["ddp"], precisions=["fp32"], world_sizes=[2])
def train(task: Task) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model.parameters())
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


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder):
    """Writes a trainer to a file in the current folder; returns its target."""

    def write_trainer(name, inside):
        Path(name).write_text(TEMPLATE.format(inside=textwrap.indent(textwrap.dedent(inside), " " * 4)))
        return name

    return write_trainer


@dataclass(frozen=True)
class Ended:
    """The exit codes and outputs of a launch's processes, in the order of their nodes."""

    codes: list[int]
    outs: list[str]
    errs: list[str]

    @property
    def header(self):
        return self._lines("header")[0]

    @property
    def cases(self):
        """The results by trainer and case id."""
        return {(line["trainer"], line["id"]): line for line in self._lines("case")}

    def _lines(self, kind):
        lines = map(json.loads, Path("conformance-results.jsonl").read_text().splitlines())
        return [line for line in lines if line["kind"] == kind]


@pytest.fixture
def run():
    """Starts commands in parallel, each with its environment, and waits for all."""
    processes: list[subprocess.Popen[str]] = []

    def started(commands, environments):
        for command, environment in zip(commands, environments, strict=True):
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env={**os.environ, **environment}, **pipes))
        printed = [process.communicate(timeout=LIMIT) for process in processes]
        outs, errs = map(list, zip(*printed, strict=True))
        return Ended([process.returncode for process in processes], outs, errs)

    yield started
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def port():
    """A free port below the ephemeral ones. A launcher opens it seconds later, and until then the system may give any
    ephemeral port to a parallel test."""
    while True:
        number = SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.2", number))
            return number


@pytest.fixture
def torchrun(run, port):
    """`conformance run` on two nodes, each started by a torchrun."""

    def called(*arguments):
        options = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.2", f"--master-port={port}"]
        torch = [sys.executable, "-m", "torch.distributed.run", *options]
        ours = ["-m", "conformance", "run", "--launcher", "torchrun", *arguments]
        return run([[*torch, f"--node-rank={node}", *ours] for node in range(2)], [{}, {}])

    return called


@pytest.fixture
def srun(run, port):
    """`conformance run` in two processes with srun's variables, on machines with different names."""

    def called(*arguments):
        command = [sys.executable, "-m", "conformance", "run", "--launcher", "torchrun", *arguments]
        environments = [
            {
                "SLURM_PROCID": str(node),
                "SLURM_NTASKS": "2",
                "SLURM_NODEID": str(node),
                "SLURMD_NODENAME": f"host-{'ab'[node]}",
                "MASTER_ADDR": "127.0.0.2",
                "MASTER_PORT": str(port),
            }
            for node in range(2)
        ]
        return run([command] * 2, environments)

    return called


@pytest.fixture
def horovodrun(run):
    """`conformance run` in two processes started by horovodrun, on hosts with two names."""

    def called(*arguments):
        launcher = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
        ours = [sys.executable, "-m", "conformance", "run", "--launcher", "horovodrun", *arguments]
        return run([[*launcher, "-H", "localhost:1,127.0.0.1:1", *ours]], [{}])

    return called
