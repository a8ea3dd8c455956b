"""A launch that cannot be: one line that says why, and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from conformance.cli import main

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.2"}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
}


@pytest.fixture
def line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[dict[str, str], tuple[str, ...]], str]:
    """The one line that `conformance run` says in an environment, before it exits with 2."""

    def printed(environment: dict[str, str], *arguments: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for module in ("agent", "joining", "torchrun", "horovodrun"):
            monkeypatch.setattr(f"conformance.launchers.{module}.JOIN_LIMIT", 1.0)
        capfd.readouterr()
        assert main(["run", *arguments]) == 2
        captured = capfd.readouterr()
        assert captured.out == ""
        [only] = captured.err.splitlines()
        return only.removeprefix("conformance: ")

    return printed


def test_not_started_by_torchrun(line):
    assert line({}, "--launcher", "torchrun").startswith(
        "--launcher torchrun: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set in the environment, "
    )


def test_not_started_by_horovodrun(line):
    printed = line({}, "--launcher", "horovodrun")
    assert printed.startswith("--launcher horovodrun: HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_HOSTNAME, ")


def test_a_rank_that_is_no_number(line, port):
    printed = line({**TORCHRUN, "MASTER_PORT": str(port), "RANK": "first"}, "--launcher", "torchrun")
    assert printed == "RANK is 'first', but must be a whole number; the launcher sets it"


def test_nothing_listens_at_the_master_s_address(line, port):
    printed = line({**TORCHRUN, "MASTER_PORT": str(port), "RANK": "1"}, "--launcher", "torchrun")
    assert printed == f"cannot reach the process of rank 0 at 127.0.0.2:{port}: Connection refused"


def test_nothing_listens_at_torchrun_s_store(line, port):
    environment = {**TORCHRUN, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert line(environment, "--launcher", "torchrun").startswith(f"cannot reach torchrun's store at 127.0.0.2:{port}")


def test_nothing_listens_at_horovodrun_s_rendezvous(line, port):
    printed = line({**HOROVODRUN, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}, "--launcher", "horovodrun")
    assert printed.startswith(f"cannot reach horovodrun's rendezvous at 127.0.0.1:{port}")


def test_a_process_that_does_not_come(line, port):
    printed = line({**TORCHRUN, "MASTER_PORT": str(port)}, "--launcher", "torchrun")
    assert printed.endswith(("of 2 processes connected within 1 s; missing ranks: 1", "missing ranks: 0, 1"))


def test_the_master_s_address_is_another_machine_s(line, port):
    printed = line({**TORCHRUN, "MASTER_PORT": str(port), "MASTER_ADDR": "192.0.2.1"}, "--launcher", "torchrun")
    assert printed == (
        f"cannot listen at 192.0.2.1:{port} for the other processes: Cannot assign requested address; "
        "MASTER_ADDR must be an address of rank 0's machine"
    )


def test_no_case_of_that_world_size(line, port):
    environment = {**TORCHRUN, "MASTER_PORT": str(port), "WORLD_SIZE": "1"}
    printed = line(environment, "ddp", "--case", "ddp-w2-fp32-momentum", "--launcher", "torchrun")
    assert printed == (
        "none of the chosen cases can be run; for example ddp-w2-fp32-momentum: "
        "torchrun started 1 process, and this case needs 2"
    )


def test_an_address_without_ray(line):
    assert line({}, "--address", "127.0.0.1:6379") == "--address needs --launcher ray"


def test_ray_is_not_installed(line, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    printed = line({}, "--launcher", "ray")
    assert printed.startswith("Ray cannot be imported (") and printed.endswith("); install it with: pip install ray")
