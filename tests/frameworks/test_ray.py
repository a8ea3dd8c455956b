"""DistributedSGD conforms on every path in every precision, a mutant does not, and no Ray process is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer
from conformance.runner.rank.environment import base_environment
from conformance.verdict.judge import judge

TARGET = "conformance.frameworks.ray"
# One per path, because Ray takes seconds for each. `conformance run` runs them all.
CASES = (
    "ray-w2-fp32-momentum",
    "ray-w2-acc2-fp16-overflow",
    "ray-w3-acc2-bf16-momentum",
    "ray-w4-fp32-momentum",
)
# A second process would have its own server and cluster, for half of the cases.
PROCESSES = 1

# As in /proc/net/tcp and tcp6: the state, and 127.0.0.1 in this machine's byte order and as an IPv6 address.
LISTEN = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

ONE_DIES = """
    import os, signal
    from conformance import Job, trainer
    from conformance.frameworks.distributed_sgd import DistributedSGD
    from conformance.frameworks.ray import TaskReplica, fit
    from conformance.frameworks.ray_cluster import local_cluster

    class Mortal(TaskReplica):
        def backward(self, window):
            if self.task.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().backward(window)

    @trainer(backends=["ray"], launches_workers=True, session=local_cluster)
    def train(job: Job) -> None:
        fit(job, Mortal, DistributedSGD)
"""

# y = 3 x, four shards of two samples.
OWN_MODEL_AND_DATA = """
import ray, torch
from torch.nn.functional import mse_loss
from conformance.frameworks.distributed_sgd import DistributedSGD, TorchReplica

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


def test_every_path_conforms(judged):
    assert {case.id: case.headline for case in judged if not case.verdict.startswith("PASS")} == {}
    assert {case.id for case in judged} == set(CASES)


def test_mutant_is_caught(caught):
    caught("driver_sums")


def test_a_replica_that_dies_is_named_and_nothing_of_the_cluster_is_left(write):
    """While the cluster runs, it listens only on loopback."""
    case = Case("ray", 2, 1, "fp32", "momentum")
    with ForkServer(write(ONE_DIES), backend="ray") as server:
        outcome = server.run(case.spec(), time_limit=60.0)
        address = re.search(r"127\.0\.0\.1:\d+", outcome.ranks[0].output)[0]
        command = next(command for command in commands() if address in command and "raylet" in command)
        [folder] = re.findall(r"=(/[^\0]*/conformance-[^/\0]+/[^/\0]+)/[^\0]*/sockets/raylet\0", command)
        assert Path(folder).is_dir()
        assert listening() <= LOOPBACK
    judgement = judge(case, outcome)
    assert judgement.verdict == "CRASH"
    assert judgement.headline.startswith("the worker of rank 1 disconnected before it finished")
    assert [command for command in commands() if address in command] == []
    assert not Path(folder).exists()


def listening():
    """The addresses, as in /proc, at which this process and its descendants listen."""
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
    """The command lines of all processes, their arguments separated by zero bytes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append((process / "cmdline").read_text())
    return found


def test_own_model_own_data_and_the_weights_back(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(OWN_MODEL_AND_DATA)
    environment = {**base_environment(os.environ), "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=True, timeout=300
    )
    *timings, result = done.stdout.splitlines()
    assert [re.sub(r" [\d.e-]+$", "", line) for line in timings] == [
        *["compute grad interior time"] * 2,
        "compute all grads time",
        "grad reduce time",
        *["apply grad interior time"] * 2,
        "apply all grads time",
    ]
    assert result == "loss 0.0 prediction 30.0"
