"""How fast a watch judges its records, and whether the time is linear in the length of the run.

    python benchmarks/watch_judge.py [--steps 1000] [--repetitions 3]

Two ranks under DDP train a perceptron with AdamW, clipping, two micro-batches per step and a schedule, once for the
given number of steps and once for four times as many, each recorded into a folder. Then the judge reads each folder. It
prints the records judged per minute on one processor, and how much longer the longer run takes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from time import process_time

import torch
from measuring import note
from torch import distributed, nn

from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.recording.start import start
from fixtures import bare

TIME_LIMIT = 600.0


def train(steps: int, rank: int) -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        for last in (False, True):
            with nullcontext() if last else model.no_sync():
                (model(torch.randn(4, 16)).square().mean() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


def record(steps: int, folder: Path, output: Path) -> None:
    def run(rank: int) -> None:
        end = start(str(folder))
        train(steps, rank)
        end()

    if (codes := bare.ranks(2, run, output, TIME_LIMIT)) != [0, 0]:
        sys.exit(f"ranks ended with {codes}: {(output / '0.txt').read_text()[-1000:]}")


def judged(folder: Path, steps: int) -> float:
    """Seconds of processor time. Raises AssertionError if a step of this correct script is not conserved."""
    with tempfile.TemporaryDirectory() as copy:
        # The reader removes the files that it has read.
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        judge = Judge()
        began = process_time()
        reader = Reader(Path(copy), judge)
        reader.finish()
        found = judge.finish()
        taken = process_time() - began
    assert (found.conserved, found.open) == (2 * steps, {}), found
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the shorter run (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {steps: Path(folder, str(steps)) for steps in (options.steps, 4 * options.steps)}
        for steps, path in runs.items():
            path.mkdir()
            Ledger.made(path)
            record(steps, path, Path(folder))
        least = dict.fromkeys(runs, float("inf"))
        for _ in range(options.repetitions):
            for steps, path in runs.items():
                least[steps] = min(least[steps], judged(path, steps))
        for steps, path in runs.items():
            records = sum(file.read_bytes().count(b"\n") for file in path.glob("*.jsonl"))
            rate = 60 * records / least[steps] / 1e6
            each = 1e3 * least[steps] / steps
            note(
                f"windows judged in {steps} steps",
                "8 ranks at 1000 a second",
                2 * steps / least[steps] / 8000,
                "at least 1",
            )
            print(f"{steps} steps, {records} records: {rate:.1f} million per minute, {each:.2f} ms per step")
    short, long = least.values()
    print(f"four times the steps take {long / short:.1f} times as long")
    note("a watch of four times the steps, judged", "one time", long / short, "4")


if __name__ == "__main__":
    main()
