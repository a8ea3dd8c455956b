"""Launches with bad input end with one line of error and exit code 2."""

from __future__ import annotations

import re
import sys

import pytest

from conformance.cli import main

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "{port}"}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "{port}",
}
ONE = ["ddp", "--case", "ddp-w2-fp32-momentum"]
#: For each problem: the launcher, its variables, other arguments, and the whole line; PORT is a free port.
LINES = {
    "not started by torchrun": (
        *("torchrun", {}, []),
        r"--launcher torchrun: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set in the environment, .*",
    ),
    "not started by horovodrun": (
        *("horovodrun", {}, []),
        r"--launcher horovodrun: HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_HOSTNAME, .*",
    ),
    "a rank that is not a number": (
        *("torchrun", TORCHRUN | {"RANK": "first"}, []),
        r"RANK is 'first', but must be a whole number; the launcher sets it",
    ),
    "nothing at the master's address": (
        *("torchrun", TORCHRUN | {"RANK": "1"}, []),
        r"cannot reach the process of rank 0 at 127\.0\.0\.2:PORT: Connection refused",
    ),
    "nothing at torchrun's store": (
        *("torchrun", TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, []),
        r"cannot reach torchrun's store at 127\.0\.0\.2:PORT.*",
    ),
    "nothing at horovodrun's rendezvous": (
        *("horovodrun", HOROVODRUN, []),
        r"cannot reach horovodrun's rendezvous at 127\.0\.0\.1:PORT.*",
    ),
    "a process that does not connect": (
        *("torchrun", TORCHRUN, []),
        r".*(of 2 processes connected within 1 s; missing ranks: 1|missing ranks: 0, 1)",
    ),
    "the address of another machine": (
        *("torchrun", TORCHRUN | {"MASTER_ADDR": "192.0.2.1"}, []),
        (
            r"cannot listen at 192\.0\.2\.1:PORT for the other processes: Cannot assign requested address; "
            r"MASTER_ADDR must be an address of rank 0's machine"
        ),
    ),
    "no case of that world size": (
        *("torchrun", TORCHRUN | {"WORLD_SIZE": "1"}, ONE),
        (
            r"none of the selected cases can run; for example ddp-w2-fp32-momentum: "
            r"torchrun started 1 process, and this case needs 2"
        ),
    ),
    "an address without ray": (None, {}, ["--address", "127.0.0.1:6379"], r"--address needs --launcher ray"),
    "no ray": ("ray", {}, [], r"Ray cannot be imported \(.*\); install it with: pip install ray"),
}


@pytest.mark.parametrize(("launcher", "environment", "arguments", "line"), LINES.values(), ids=LINES)
def test_one_line_says_why(launcher, environment, arguments, line, port, monkeypatch, capfd):
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(port=port))
    for module in ("agent", "context", "joining"):
        monkeypatch.setattr(f"conformance.launchers.{module}.JOIN_LIMIT", 1.0)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["run", *arguments, *(["--launcher", launcher] if launcher else [])]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"conformance: {line.replace(':PORT', f':{port}')}\n", captured.err)
