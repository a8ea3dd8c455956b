"""Memory of a watch: the same after 100,000 steps as after 1,000.

    python benchmarks/watch_memory.py [--steps 1000 100000]

A script, two layers with AdamW, clipping, a schedule and accumulation, runs under a watch for each number of steps. It
prints peak memory of the script and of the judge, the largest size of the records' folder, and the time per step. If
the judge is slower than the script, records wait in the folder, not in memory.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

SCRIPT = """
import resource, sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(sys.argv[1]))
for _ in range(int(sys.argv[1])):
    for _ in range(2):
        (model(torch.randn(4, 16)).square().mean() / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def watched(steps: int, connection: Connection) -> None:
    """Runs in a separate process: sends the judge's peak in KiB, the most bytes in the folder, and the findings."""
    from conformance.watch import watching
    from conformance.watch.judging.watch_judge import Judge
    from conformance.watch.reading import Reader

    most = 0

    class Measured(Reader):
        def __init__(self, folder: Path, judge: Judge) -> None:
            super().__init__(folder, judge)
            self.folder = folder

        def read(self) -> bool:
            nonlocal most
            most = max(most, sum(path.stat().st_size for path in self.folder.iterdir()))
            return super().read()

    vars(watching)["Reader"] = Measured
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        found = watching.watch([sys.executable, str(script), str(steps)]).findings
    connection.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, most, found.conserved, len(found.open)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 100_000], help="(default: %(default)s)")
    options = parser.parse_args()
    for steps in options.steps:
        here, there = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=watched, args=(steps, there))
        print(f"{steps} steps; the script's peak in KiB: ", end="", flush=True)
        began = perf_counter()
        process.start()
        judge, most, conserved, facts = here.recv()
        process.join()
        print(
            f"  the judge's {judge}; at most {most / 2**20:.1f} MiB of records; {conserved} steps conform, "
            f"{facts} open facts; {1e3 * (perf_counter() - began) / steps:.2f} ms per step"
        )


if __name__ == "__main__":
    main()
