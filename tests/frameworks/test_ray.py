"""DistributedSGD conforms in all that its adapter declares, its mutants do not, and nothing of Ray is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.cases.case import Case
from conformance.runner.client import ForkServer
from conformance.runner.environment import base_environment
from conformance.verdict.judge import judge

TARGET = "conformance.trainers.ray"

# As in /proc/net/tcp and tcp6: the state, and 127.0.0.1 in the byte order of this machine and as an IPv6 address.
LISTEN = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

ONE_FAILS = """
    import os, signal, time
    from conformance import Job, trainer
    from conformance.trainers.distributed_sgd import DistributedSGD
    from conformance.trainers.ray import TaskReplica, fit
    from conformance.trainers.ray_cluster import local_cluster

    def no_luck():
        raise ValueError("no such luck")

    FAILURES = {
        "fp64": no_luck,
        "fp32": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "bf16": lambda: time.sleep(1000),
    }

    class Unlucky(TaskReplica):
        def backward(self, window):
            if self.task.rank == 1:
                FAILURES[self.task.precision]()
            return super().backward(window)

    @trainer(backends=["ray"], launches_workers=True, session=local_cluster)
    def train(job: Job) -> None:
        fit(job, Unlucky, DistributedSGD)
"""

# y = 3 x, four shards of two samples.
OWN_MODEL_AND_DATA = """
import ray, torch
from torch.nn.functional import mse_loss
from conformance.trainers.distributed_sgd import DistributedSGD, TorchReplica

def model_creator(worker, device):
    inputs = torch.arange(1.0, 9.0).view(4, 2, 1)[2 * worker + device]
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1 / 64)
    return TorchReplica(model, optimizer, lambda model, x: mse_loss(model(x), 3 * x), [inputs])

ray.init(num_cpus=4, include_dashboard=False)
with DistributedSGD(model_creator, num_workers=2, devices_per_worker=2) as sgd:
    for number in range(30):
        loss = sgd.step(verbose=number == 0)
    model = torch.nn.Linear(1, 1, bias=False)
    model.load_state_dict(sgd.get_weights())
print("loss", round(loss, 6), "prediction", round(model(torch.tensor([[10.0]])).item(), 3))
"""


def test_every_verdict(judged):
    assert {case.id: case.headline for case in judged if not case.verdict.startswith("PASS")} == {}
    assert {case.precision for case in judged} == {"fp64", "fp32", "bf16", "fp16"}
    assert {case.path for case in judged} == {"ray-w2", "ray-w2-acc2", "ray-w3-acc2", "ray-w4"}


@pytest.mark.parametrize("mutant", ["driver_sums", "own_gradients", "clips_before_reduce"])
def test_mutant_is_caught(caught, mutant):
    caught(mutant)


def test_what_is_said_of_a_replica_that_raises_dies_or_hangs(write):
    with ForkServer(write(ONE_FAILS), backend="ray") as server:
        raised, died, hung = (said(server, *how) for how in (("fp64", 60.0), ("fp32", 60.0), ("bf16", 15.0)))
    assert raised == "CRASH: rank 1 raised ValueError: no such luck (trainer.py:9)"
    assert died.startswith("CRASH: the worker of rank 1 was gone before it finished")
    assert hung.startswith("HANG: ")
    assert "rank 1 did not finish: killed at the time limit of 15 s" in hung
    assert ", at trainer.py:14" in hung


def said(server, precision, time_limit):
    case = Case("ray", "accumulated", 2, 2, precision, "momentum")
    judgement = judge(case, server.run(case.spec(), time_limit))
    return f"{judgement.verdict}: {judgement.headline}"


def test_no_process_and_no_file_of_the_cluster_is_left():
    """And while it is there, it listens on loopback only."""
    case = Case("ray", "batched", 2, 1, "fp32", "momentum")
    with ForkServer(TARGET, backend="ray") as server:
        output = server.run(case.spec(), time_limit=60.0).ranks[0].output
        address = re.search(r"127\.0\.0\.1:\d+", output)[0]
        command = next(command for command in commands() if address in command and "raylet" in command)
        [folder] = re.findall(r"=(/[^\0]*/conformance-[^/\0]+)/[^\0]*/sockets/raylet\0", command)
        assert Path(folder).is_dir()
        assert listening() <= LOOPBACK
    assert [command for command in commands() if address in command] == []
    assert not Path(folder).exists()


def listening():
    """The addresses, as /proc has them, at which this process and all below it listen."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    sockets = {f"socket:[{row[9]}]": row[1].split(":")[0] for row in rows if row[3] == LISTEN}
    return {sockets[file] for pid in family() for file in open_files(pid) if file in sockets}


def family():
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def open_files(pid):
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield os.readlink(file)


def commands():
    """The command lines of all processes, their arguments parted by zero bytes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append((process / "cmdline").read_text())
    return found


def test_own_model_own_data_and_the_weights_back(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(OWN_MODEL_AND_DATA)
    environment = {**base_environment(os.environ), "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    *timings, result = done.stdout.splitlines()
    assert [re.sub(r" [\d.e-]+$", "", line) for line in timings] == [
        *["compute grad interior time"] * 2,
        "compute all grads time",
        "grad reduce time",
        *["apply grad interior time"] * 2,
        "apply all grads time",
    ]
    assert result == "loss 0.0 prediction 30.0"
