"""The launch variables are those by which each framework finds its rank."""

from __future__ import annotations

import pytest

from conformance.runner.rank.environment import NodeShare, base_environment, rank_environment

SINGLE = {"case": "single", "backend": "single", "world_size": 1}
DDP = {"case": "ddp-w4", "backend": "ddp", "world_size": 4}
HVD = {**DDP, "backend": "horovod"}
TWO_HOSTS = {"hosts": ["a", "a", "b", "b"]}
HERE, THERE = NodeShare((), port=1234), NodeShare((), "192.0.2.1", 1234, "eth7")
#: The case, the rank, its share, and variables of its environment.
SEEN = [
    (SINGLE, 0, HERE, "MASTER_ADDR=127.0.0.1 MASTER_PORT=1234 RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1"),
    (DDP, 3, HERE, "MASTER_ADDR=127.0.0.1 MASTER_PORT=1234 RANK=3 LOCAL_RANK=3 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4"),
    (DDP, 3, HERE, "GROUP_RANK=0 TORCHELASTIC_RUN_ID=ddp-w4 TORCHELASTIC_USE_AGENT_STORE=True"),
    (DDP | TWO_HOSTS, 3, THERE, "MASTER_ADDR=192.0.2.1 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1"),
    (DDP | TWO_HOSTS, 3, THERE, "GROUP_WORLD_SIZE=2 GLOO_SOCKET_IFNAME=eth7 NCCL_SOCKET_IFNAME=eth7"),
    (HVD, 3, HERE, "HOROVOD_RANK=3 HOROVOD_SIZE=4 HOROVOD_CONTROLLER=gloo HOROVOD_FUSION_THRESHOLD=2097152"),
    (HVD, 3, HERE, "HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=1234"),
    (HVD | TWO_HOSTS, 2, THERE, "HOROVOD_GLOO_RENDEZVOUS_ADDR=192.0.2.1 HOROVOD_HOSTNAME=b HOROVOD_RANK=2"),
    (HVD | TWO_HOSTS, 2, THERE, "HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=1 HOROVOD_CROSS_SIZE=2"),
    (HVD | TWO_HOSTS, 2, THERE, "HOROVOD_GLOO_IFACE=eth7"),
]


@pytest.mark.parametrize(("spec", "rank", "share", "wanted"), SEEN)
def test_ranks_have_the_variables_of_only_their_launcher(spec, rank, share, wanted):
    environment = rank_environment(spec, rank, share)
    assert {f"{name}={value}" for name, value in environment.items()} >= set(wanted.split())
    other = "RANK" if spec["backend"] == "horovod" else "HOROVOD"
    assert not any(name.startswith(other) for name in environment)


def test_without_a_rendezvous_there_is_no_launcher():
    assert rank_environment(SINGLE, 0, NodeShare(())) == {}


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK"])
def test_another_launcher_is_not_inherited(name):
    assert name not in base_environment({name: "1"})


def test_the_users_variables_are_inherited():
    assert base_environment({"ACCELERATE_USE_CPU": "true"})["ACCELERATE_USE_CPU"] == "true"
