"""`conformance run --launcher ray` on two nodes of a real cluster, both on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from fixtures.written import file_of

CASES = ("single-batched-fp32-momentum", "ddp-w2-acc2-fp32-momentum", "ddp-w4-acc2-fp16-clip-value")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def conformance(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conformance", "run", "--launcher", "ray", *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=600)


def test_two_nodes(address: str, tmp_path: Path) -> None:
    selected = [part for case in CASES for part in ("--case", case)]
    ended = conformance(tmp_path, "--address", address, "batched", "ddp", str(file_of("no_sync_left_on")), *selected)
    assert ended.returncode == 1, ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "conformance-results.jsonl").read_text().splitlines()]
    hosts = lines[0]["machine"]["hosts"].split(", ")
    assert len(set(hosts)) == 2
    cases = {(line["trainer"], line["id"]): line for line in lines if line["kind"] == "case"}
    verdicts = {key: case["verdict"] for key, case in cases.items()}
    assert verdicts.pop(("no_sync_left_on", CASES[1])) == "DIVERGED"
    assert {*verdicts.items()} >= {(("batched", CASES[0]), "PASS (exact)"), (("ddp", CASES[1]), "PASS (exact)")}
    assert verdicts["ddp", CASES[2]] == "PASS (exact)"
    first, second = hosts
    assert [rank["host"] for rank in cases["ddp", CASES[1]]["ranks"]] == [first, second]
    assert [rank["host"] for rank in cases["ddp", CASES[2]]["ranks"]] == [first, first, second, second]


def test_no_cluster(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "--address", "ray://127.0.0.1:10001", "ddp")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "conformance: ray://127.0.0.1:10001: run this command on a node of the cluster, "
        "with HOST:PORT or no --address at all\n"
    )


def test_nobody_at_the_address(tmp_path: Path) -> None:
    ended = conformance(tmp_path, "--address", "127.0.0.1:9", "ddp")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "conformance: cannot reach a Ray cluster at 127.0.0.1:9: Connection refused\n"
