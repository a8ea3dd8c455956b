"""The launch variables: enough for each framework to find its rank."""

from __future__ import annotations

import pytest

from conformance.runner.rank.environment import NodeShare, base_environment, rank_environment

NATIVE = {"case": "ddp-w4", "backend": "ddp", "world_size": 4}


SINGLE = {"case": "single", "backend": "single", "world_size": 1}


def test_a_single_process_sees_what_torchrun_sets_for_one() -> None:
    assert rank_environment(SINGLE, 0, NodeShare((), port=1234)).items() >= {
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_WORLD_SIZE", "1"),
    }


def test_without_a_rendezvous_there_is_no_launcher() -> None:
    assert rank_environment(SINGLE, 0, NodeShare(())) == {}


def test_ddp_ranks_see_what_torchrun_sets() -> None:
    environment = rank_environment(NATIVE, 3, NodeShare((), port=1234))
    assert environment.items() >= {
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1234"),
        ("RANK", "3"),
        ("LOCAL_RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "0"),
        ("TORCHELASTIC_RUN_ID", "ddp-w4"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    }
    assert not any(name.startswith("HOROVOD") for name in environment)


def test_horovod_ranks_see_what_horovodrun_sets() -> None:
    environment = rank_environment({**NATIVE, "backend": "horovod"}, 3, NodeShare((), port=1234))
    assert environment.items() >= {
        ("HOROVOD_RANK", "3"),
        ("HOROVOD_SIZE", "4"),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "1234"),
        ("HOROVOD_CONTROLLER", "gloo"),
        ("HOROVOD_FUSION_THRESHOLD", "2097152"),
    }
    assert "RANK" not in environment


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK"])
def test_another_launcher_is_not_inherited(name: str) -> None:
    assert name not in base_environment({name: "1"})


def test_what_the_user_set_is_inherited() -> None:
    assert base_environment({"ACCELERATE_USE_CPU": "true"})["ACCELERATE_USE_CPU"] == "true"


def test_ranks_on_two_machines_see_torchrun_s_groups() -> None:
    spec = {**NATIVE, "hosts": ["a", "a", "b", "b"]}
    assert rank_environment(spec, 3, NodeShare((), "192.0.2.1", 1234, "eth7")).items() >= {
        ("MASTER_ADDR", "192.0.2.1"),
        ("RANK", "3"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("GLOO_SOCKET_IFNAME", "eth7"),
        ("NCCL_SOCKET_IFNAME", "eth7"),
    }


def test_ranks_on_two_machines_see_horovod_s_communicators() -> None:
    spec = {**NATIVE, "backend": "horovod", "hosts": ["a", "a", "b", "b"]}
    assert rank_environment(spec, 2, NodeShare((), "192.0.2.1", 1234, "eth7")).items() >= {
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "192.0.2.1"),
        ("HOROVOD_HOSTNAME", "b"),
        ("HOROVOD_RANK", "2"),
        ("HOROVOD_LOCAL_RANK", "0"),
        ("HOROVOD_LOCAL_SIZE", "2"),
        ("HOROVOD_CROSS_RANK", "1"),
        ("HOROVOD_CROSS_SIZE", "2"),
        ("HOROVOD_GLOO_IFACE", "eth7"),
    }
