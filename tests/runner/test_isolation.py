"""Cases, trainers and the environment do not affect later ones; processes listen only on loopback."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.runner.front.client import ForkServer

LIMIT = 60.0

# Every listening socket of a process below the server, as [address in hexadecimal, process].
LISTENERS = """
import glob, json, os

def listeners():
    server = os.getppid()
    family = open(f"/proc/{server}/task/{server}/children").read().split()
    inodes = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = []
    for pid in family:
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                name = os.readlink(link)
            except FileNotFoundError:
                continue
            if name in inodes:
                found.append((inodes[name], pid))
    return found
"""
HOROVOD = """
import horovod.torch as hvd
from conformance import Task, trainer
{before}

@trainer(backends=["horovod"])
def train(task: Task) -> None:
    model = task.model()
    if task.rank == 0:
        while len(found := listeners()) < 2:
            pass
        print(json.dumps(found))
    hvd.init()
    for batch in task.dataloader():
        task.loss(model(batch.inputs), batch)
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def test_a_case_starts_afresh(write, make_spec):
    target = write(
        """
        print(seen, started, torch.get_num_threads(), torch.get_rng_state().sum().item(), torch.rand(1))
        seen.append(task.rank)
        """,
        """
        seen = []
        started = dist.is_initialized()
        """,
    )
    with ForkServer(target, "ddp") as server:
        first, second = (server.run(make_spec("ddp"), LIMIT) for _ in range(2))
    outputs = {rank.output for outcome in (first, second) for rank in outcome.ranks}
    assert len(outputs) == 1
    assert outputs.pop().startswith("[] False 1 ")


def test_two_servers_in_parallel(write, make_spec):
    def run(server):
        return [server.run(make_spec("ddp"), LIMIT).ranks[1].output for _ in range(3)]

    with (
        ForkServer(write("print(name)", "name = 'left'"), "ddp") as left,
        ForkServer(write("print(name)", "name = 'right'"), "ddp") as right,
        ThreadPoolExecutor() as pool,
    ):
        assert list(pool.map(run, [left, right])) == [["left\n"] * 3, ["right\n"] * 3]


def test_ranks_have_the_front_processs_folder_and_search_path(write, ran, tmp_path, monkeypatch):
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "only_here.py").write_text("name = 'found'")
    target = write("print(only_here.name, os.getcwd())", "import only_here")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    (rank,) = ran(Path(target).name, "single").ranks
    assert rank.output == f"found {tmp_path}\n"


def test_descriptors_of_the_harness_are_closed_in_ranks(alone):
    """A rank has three streams, its pipe and two files for reports, the release, and the listing itself."""
    assert int(alone("print(len(os.listdir('/proc/self/fd')))").output) == 3 + 4 + 1


def test_ddp_listens_on_loopback_only(write, ran):
    target = write("dist.barrier(); print(json.dumps(listeners())); dist.barrier()", LISTENERS)
    outcome = ran(target)
    for rank in outcome.ranks:
        found = json.loads(rank.output)
        assert len({pid for _, pid in found}) == 3  # the rendezvous host and both ranks
        assert {address for address, _ in found} <= LOOPBACK


def test_horovod_listens_on_loopback_only(write, ran):
    """Its ranks listen until they have connected, so rank 0 checks before it connects to rank 1."""
    outcome = ran(write(before=LISTENERS, template=HOROVOD), "horovod")
    assert all(rank.finished for rank in outcome.ranks), outcome
    # Gloo may add a line about a peer that left first.
    found = json.loads(outcome.ranks[0].output.splitlines()[0])
    assert {address for address, _ in found} <= LOOPBACK
