"""Seconds for one new 2-rank DDP + fp16 case: ForkServer compared with other ways to start ranks.

All of them run the loop of `conformance.trainers.ddp` on the case ddp-w2-fp16-momentum in new processes for each case,
and all must reach bit-identical weights. They take turns, one case each per round.

    python benchmarks/launchers.py [--rounds 5]

Besides this package it needs an import of torch's own test classes:

    pip install -c constraints.txt expecttest

Everything stays on loopback: the other launchers meet through a file, because a TCPStore started by torch listens on
every interface. The difference is milliseconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import unittest
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measuring import CASE, TIME_LIMIT, in_turns, note, seconds, show, stay_on_loopback

from conformance.runner.front.client import ForkServer
from conformance.verdict.judge import judge

OURS = "ForkServer"
TARGET = 25


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds for one fresh 2-rank DDP + fp16 case, by launcher.")
    parser.add_argument("--rounds", type=int, default=5, help="cases with each launcher (default: %(default)s)")
    rounds = parser.parse_args().rounds
    stay_on_loopback()

    server = ForkServer("ddp", "ddp")
    start = seconds(server.__enter__)
    with server, TemporaryDirectory() as folder:
        outcome = server.run(CASE.spec(), TIME_LIMIT)
        judge(CASE, outcome)
        job = Path(folder, "job.json")
        weights = outcome.ranks[0].events[-1]["weights"]
        job.write_text(json.dumps({"spec": CASE.spec(), "weights": weights}))
        contenders: dict[str, Callable[[], object]] = {
            OURS: lambda: server.run(CASE.spec(), TIME_LIMIT),
            f"{OURS} and the verdict": lambda: judge(CASE, server.run(CASE.spec(), TIME_LIMIT)),
            **peers(job),
        }
        times = in_turns(contenders, rounds)

    ours = median(times[OURS])
    rows = [
        (
            name,
            f"{median(found):.3f}",
            f"{min(found):.3f}",
            f"{max(found):.3f}",
            f"{median(found) / ours:.1f}",
        )
        for name, found in times.items()
    ]
    for name in [*times][2:]:
        note(f"a fresh case by {name}", OURS, median(times[name]) / ours, f"at least {TARGET}")
    show(
        f"One fresh case {CASE.id}, {rounds} rounds in turns",
        ("launcher", "median s", "least s", "most s", "ratio to ForkServer"),
        [rows[:2], rows[2:]],
        f"Target: each of the others at least {TARGET} times ForkServer. Its server starts once, in {start:.1f} s.",
    )


def peers(job: Path) -> dict[str, Callable[[], object]]:
    """The other launchers, each as a function that runs one case. They import torch into this process."""
    import bare_case
    import bare_test_case
    from torch.multiprocessing.spawn import spawn as start_processes

    # Torch's test class logs each process that it starts.
    logging.disable(logging.INFO)
    numbers = count()
    os.environ[bare_test_case.JOB] = str(job)

    def store() -> str:
        """A new file for each rendezvous."""
        return str(job.with_name(f"store-{next(numbers)}"))

    def spawn() -> None:
        start_processes(bare_case.run, args=(str(job), store()), nprocs=CASE.world_size)

    def torchrun() -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(CASE.world_size)]
        command += ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", store()]
        command += ["--local-addr", "127.0.0.1", bare_case.__file__, str(job), store()]
        # It leaves a folder of logs in the given temporary folder.
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(job.parent)}
        subprocess.run(command, env=environment, check=True)

    def test_case() -> None:
        result = unittest.TestResult()
        unittest.TestSuite([bare_test_case.BareTestCase("test_case")]).run(result)
        if not result.wasSuccessful():
            raise AssertionError(result.failures + result.errors)

    return {"torch.multiprocessing.spawn": spawn, "torchrun": torchrun, "MultiProcessTestCase": test_case}


if __name__ == "__main__":
    main()
