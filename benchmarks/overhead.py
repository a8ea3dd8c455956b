"""The harness's overhead over the bare training loop: processes and rendezvous, the recorder, the verdict.

    python benchmarks/overhead.py [--rounds 30]

1. Processes. Cases that stop early, in turns: differences show the cost of forking, rendezvous and training.
2. Recorder. The reference DDP loop of 120 steps, with and without the recorder, in turns in the same two
   processes.
3. Verdict. `judge` on the case: the first time, when the oracle computes the answer, and again.

The case is ddp-w2-fp16-momentum. Everything stays on loopback.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from measuring import CASE, TIME_LIMIT, in_turns, note, seconds, show, stay_on_loopback

from conformance.runner.front.client import ForkServer
from conformance.verdict.judge import judge

EPOCHS = 20
STAGES = Path(__file__).with_name("stages.py")

Row = tuple[str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description="The harness's overhead over the bare training loop.")
    parser.add_argument("--rounds", type=int, default=30, help="runs of each part (default: %(default)s)")
    rounds = parser.parse_args().rounds
    stay_on_loopback()
    show(
        f"Overhead on the case {CASE.id}, medians of {rounds} rounds in turns",
        ("", "ms", "compared"),
        [list(processes(rounds)), list(recorder(rounds)), list(verdict(rounds))],
        "Compared: with the row above, unless stated otherwise.",
    )


def processes(rounds: int) -> Iterator[Row]:
    """A case, from the client's call to its answer, with one more part at a time."""
    whole = CASE.spec()
    alone = replace(CASE, backend="single", world_size=1).spec()
    longer = times_epochs(whole)
    with ExitStack() as servers:

        def of(trainer: str, backend: str) -> ForkServer:
            return servers.enter_context(ForkServer(trainer, backend))

        single = of(f"{STAGES}:nothing", "single")
        ranks = of(f"{STAGES}:nothing", "ddp")
        group = of(f"{STAGES}:process_group", "ddp")
        training = of("ddp", "ddp")
        times = in_turns(
            {
                "one process that does nothing": lambda: single.run(alone, TIME_LIMIT),
                "two, with a rendezvous": lambda: ranks.run(whole, TIME_LIMIT),
                "two, with a process group": lambda: group.run(whole, TIME_LIMIT),
                f"two train {whole['steps']} steps: a case": lambda: training.run(whole, TIME_LIMIT),
                f"two train {longer['steps']} steps": lambda: training.run(longer, TIME_LIMIT),
            },
            rounds,
        )
    before = 0.0
    for name, found in times.items():
        now = median(found)
        yield name, f"{now * 1e3:.1f}", f"{(now - before) * 1e3:+.1f} ms" if before else ""
        before = now


def recorder(rounds: int) -> Iterator[Row]:
    """The loop with and without the recorder. Imports torch into this process."""
    from recorded import OFF, ON, compare
    from torch.multiprocessing import get_context
    from torch.multiprocessing.spawn import spawn

    spec = times_epochs(CASE.spec())
    answer = get_context("spawn").SimpleQueue()
    with TemporaryDirectory() as folder:
        arguments = (json.dumps(spec), str(Path(folder, "store")), rounds, answer)
        spawn(compare, args=arguments, nprocs=CASE.world_size)
        times = answer.get()
    off, on = median(times[OFF]), median(times[ON])
    note("a recorded step", "a bare one", on / off, "")
    steps = spec["steps"]
    yield f"bare loop, {steps} steps", f"{off * 1e3:.1f}", ""
    yield "the same, recorded", f"{on * 1e3:.1f}", f"x {on / off:.2f}"
    yield "bare loop, per step", f"{off / steps * 1e3:.3f}", ""
    yield "recorder, per step", f"{(on - off) / steps * 1e3:.3f}", f"{(on - off) / off:+.0%} of the step"


def verdict(rounds: int) -> Iterator[Row]:
    """The time of `judge`, which no trainer waits for."""
    with ForkServer("ddp", "ddp") as server:
        outcome = server.run(CASE.spec(), TIME_LIMIT)
    first = seconds(lambda: judge(CASE, outcome))
    again = median(in_turns({"again": lambda: judge(CASE, outcome)}, rounds)["again"])
    yield "judge, the first time (one run)", f"{first * 1e3:.1f}", ""
    yield "judge, again", f"{again * 1e3:.1f}", f"x {again / first:.2f}"


def times_epochs(spec: dict[str, Any]) -> dict[str, Any]:
    """The case made longer, so the cost of setup is negligible."""
    schedule = spec["schedule"] * EPOCHS
    return {**spec, "epochs": EPOCHS, "steps": spec["steps"] * EPOCHS, "schedule": schedule}


if __name__ == "__main__":
    main()
