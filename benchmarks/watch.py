"""The overhead of `conformance watch` per step: a script with a recorder and one without take steps in turns.

python benchmarks/watch.py [--pairs 1] [--steps 60] [--tokens 128] [--every 1]

The script is a transformer of 10 million parameters on one thread, with AdamW and clipping by norm. It prints the
median step time without the watch, the ratio of the medians, and the median of the ratios of neighbouring steps: in
wall time and in processor time, which other load disturbs less. Two processes that run the same script differ by a few
per cent for their whole life, depending on their memory layout: with several pairs, which alternate the order, it also
prints the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import note

from conformance.watch.ledger import Ledger
from conformance.watch.recording.parameters import WHOLE_AT_FIRST
from conformance.watch.recording.settings import Settings
from conformance.watch.watching import environment

WARM_UP = WHOLE_AT_FIRST + 2
"""Steps. In the first ones every parameter is read completely, later only a slice."""

SCRIPT = """
import sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
VOCABULARY, WIDTH = 8000, 320


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in sys.stdin:
    tokens = torch.randint(0, VOCABULARY, (int(sys.argv[1]) // 64, 65))
    start = time.perf_counter(), time.process_time()
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(time.perf_counter() - start[0], time.process_time() - start[1], flush=True)
"""


class Stepping:
    """A process that takes a step on request."""

    def __init__(self, tokens: int, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def step(self) -> tuple[float, float]:
        """Seconds of wall time and of processor time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        clock, processor = map(float, self._process.stdout.readline().split())
        return clock, processor

    def end(self) -> None:
        self._process.communicate()


def measure(options: argparse.Namespace, watched_first: bool) -> list[float]:
    """The ratios of the medians of one pair of processes: in wall time and in processor time."""
    with tempfile.TemporaryDirectory() as folder:
        Ledger.made(folder)
        variables = {**environment(folder, os.environ), **Settings(every=options.every).variables()}
        kinds = {True: variables, False: dict(os.environ)}
        pair = {watched: Stepping(options.tokens, kinds[watched]) for watched in (watched_first, not watched_first)}
        times = [{watched: one.step() for watched, one in pair.items()} for _ in range(WARM_UP + options.steps)]
        for one in pair.values():
            one.end()
        written = sum(path.stat().st_size for path in Path(folder).iterdir())
    kilobytes = written / len(times) / 1e3
    print(f"{options.tokens} tokens, one window of {options.every}: {kilobytes:.1f} kB written per step")
    ratios = []
    for kind, name in enumerate(("clock", "processor")):
        pairs = [(step[True][kind], step[False][kind]) for step in times[WARM_UP:]]
        with_, without = (median(of) for of in zip(*pairs, strict=True))
        ratios.append(with_ / without)
        print(
            f"{name}: {without * 1e3:.0f} ms without, ratio of medians {with_ / without:.3f}, "
            f"median of ratios {median(a / b for a, b in pairs):.3f}"
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128, help="tokens per step, a multiple of 64")
    parser.add_argument("--every", type=int, default=1, help="watch one window in every N")
    options = parser.parse_args()
    pairs = [measure(options, watched_first=number % 2 == 0) for number in range(options.pairs)]
    clock, processor = (median(of) for of in zip(*pairs, strict=True))
    print(f"the median of {options.pairs} pairs: clock {clock:.3f}, processor {processor:.3f}")
    sampled = "" if options.every == 1 else f", one window of {options.every}"
    note(
        f"processor time of a watched step{sampled}",
        "not watched",
        processor,
        f"at most {1.03 if options.every == 1 else 1.01}",
    )


if __name__ == "__main__":
    main()
