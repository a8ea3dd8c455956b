"""Whole runs on two hosts, which are two launched processes on loopback: passes, failures and lost hosts."""

from __future__ import annotations

from pathlib import Path

from fixtures.written import file_of

LAUNCHES_ITS_WORKERS = """
from conformance import Job, trainer

@trainer(backends=["ddp"], launches_workers=True)
def train(job: Job) -> None:
    raise AssertionError("this must not run")
"""
CASES = ("ddp-w2-fp64-momentum", "ddp-w2-acc2-fp16-clip-value", "ddp-w2-acc2-fp32-sgd")

#: The agent is the first `conformance run` above the rank.
KILLS_ITS_AGENT = """
if task.rank == 1:
    pid = os.getpid()
    while b"-m\\0conformance\\0run" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()
"""


def chosen(*cases):
    return [part for case in cases for part in ("--case", case)]


def test_torchrun_on_two_nodes(torchrun):
    ended = torchrun("ddp", str(file_of("no_sync_left_on")), *chosen(*CASES, "ddp-w3-fp32-momentum"))
    assert ended.codes == [1, 0], ended.errs
    hosts = ended.header["machine"]["hosts"].split(", ")
    assert len(set(hosts)) == 2
    for id in CASES:
        case = ended.cases["ddp", id]
        assert case["verdict"].startswith("PASS"), case["headline"]
        assert [rank["host"] for rank in case["ranks"]] == hosts
        assert all(guard["holds"] for guard in case["guards"])
        assert case["command"] == f"conformance run --launcher torchrun ddp --case {id}"
    assert ended.cases["no_sync_left_on", CASES[-1]]["verdict"] == "DIVERGED"
    too_large = ended.cases["ddp", "ddp-w3-fp32-momentum"]
    assert (too_large["verdict"], too_large["headline"]) == (
        "UNAVAILABLE",
        "torchrun started 2 processes, and this case needs 3",
    )
    report = Path("conformance-report.html").read_text()
    assert all(f"on {host}" in report for host in hosts)
    assert ended.outs[1] == ""


def test_failures_on_one_host_are_known_on_the_other(srun, write):
    names = ("exits_in_the_middle", "hangs_before_the_last_window", "raises_on_one_rank")
    targets = [str(file_of(name)) for name in names]
    targets += ["ddp", write("killed.py", "if task.rank == 1: os.kill(os.getpid(), signal.SIGKILL)")]
    ended = srun(*targets, "--case", "ddp-w2-fp32-momentum", "--time-limit", "30")
    assert ended.codes == [1, 0], ended.errs
    found = {trainer: case for (trainer, _), case in ended.cases.items()}
    assert found["ddp"]["verdict"] == "PASS (exact)"
    assert [found[name]["verdict"] for name in names] == ["CRASH", "HANG", "CRASH"]
    assert found["exits_in_the_middle"]["headline"].startswith("rank 1 raised SystemExit: 0")
    assert "rank 1 did not finish" in found["hangs_before_the_last_window"]["headline"]
    assert found["raises_on_one_rank"]["headline"].startswith("rank 1 raised")
    assert found["killed"]["headline"] == "rank 1 was killed by SIGKILL"
    assert "after rank 1 failed" in found["killed"]["ranks"][0]["exit"]
    assert all([rank["host"] for rank in case["ranks"]] == ["host-a", "host-b"] for case in found.values())


def test_a_host_that_is_lost_ends_the_run(srun, write):
    ended = srun(write("lost.py", KILLS_ITS_AGENT), *chosen("ddp-w2-fp32-momentum", "ddp-w2-fp32-sgd"))
    assert ended.codes == [3, -9], ended.errs
    [case] = ended.cases.values()
    assert (case["verdict"], case["headline"]) == ("CRASH", "lost the connection to host-b")
    [line] = ended.errs[0].splitlines()
    assert line.startswith("conformance: the harness failed: ")
    assert line.endswith("lost the connection to host-b (rank 1 of the launch); the remaining cases were not run")


def test_a_trainer_that_launches_its_workers(srun):
    case = "ddp-w2-fp32-momentum"
    Path("own.py").write_text(LAUNCHES_ITS_WORKERS)
    ended = srun("own.py", "ddp", "--case", case)
    assert ended.codes == [0, 0], ended.errs
    assert ended.cases["ddp", case]["verdict"] == "PASS (exact)"
    refused = ended.cases["own", case]
    assert (refused["verdict"], refused["headline"]) == (
        "UNAVAILABLE",
        "the trainer launches its workers itself; run it without --launcher",
    )


def test_a_trainer_is_imported_once_on_each_host(srun, write):
    """One import serves all its backends."""
    target = write("twice.py", "")
    source = Path(target).read_text().replace('["ddp"], ', '["ddp", "ring"], ')
    Path(target).write_text(source + '\nopen("imports", "a").write(os.environ["SLURMD_NODENAME"] + "\\n")\n')
    ended = srun(target, *chosen("ddp-w2-fp32-momentum", "ring-w2-fp32-momentum"))
    assert {backend for _, backend in ended.cases} == {"ddp-w2-fp32-momentum", "ring-w2-fp32-momentum"}
    assert sorted(Path("imports").read_text().split()) == ["host-a", "host-b"]


def test_horovodrun_on_two_hosts(horovodrun):
    ended = horovodrun("horovod", "ddp", *chosen("horovod-w2-acc2-fp16-momentum", "ddp-w2-fp32-momentum"))
    assert ended.codes == [0], ended.errs
    assert {case["verdict"] for case in ended.cases.values()} == {"PASS (exact)"}
    assert len(ended.cases) == 2
    for case in ended.cases.values():
        assert [rank["host"] for rank in case["ranks"]] == ["localhost", "127.0.0.1"]
