"""What `conformance watch` costs a step: a script with a recorder and one without take steps in turns.

python benchmarks/watch.py [--steps 40] [--tokens 1024] [--every 1]

The script is a transformer of 10 million parameters on one thread, with AdamW and clipping by norm. It prints the
median step time without, the ratio of the medians, and the median of the ratios of neighbouring steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from conformance.watch.recording.settings import Settings
from conformance.watch.watching import environment

WARM_UP = 18
"""Steps. Weights are compared before each of the first 16, and later before every tenth."""

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
    start = time.perf_counter()
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(time.perf_counter() - start, flush=True)
"""


class Stepping:
    """A process that takes a step when it is asked to."""

    def __init__(self, tokens: int, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def step(self) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=1024, help="in a step, a multiple of 64")
    parser.add_argument("--every", type=int, default=1, help="look at one window of so many")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        watched = {**environment(folder, os.environ), **Settings(every=options.every).variables()}
        pair = Stepping(options.tokens, watched), Stepping(options.tokens, dict(os.environ))
        times = [[one.step() for one in pair] for _ in range(WARM_UP + options.steps)][WARM_UP:]
        for one in pair:
            one.end()
        written = sum(path.stat().st_size for path in Path(folder).iterdir())
    with_, without = (median(of) for of in zip(*times, strict=True))
    print(
        f"{options.tokens} tokens, one window of {options.every}: {without * 1e3:.0f} ms without, ratio of medians "
        f"{with_ / without:.3f}, median of ratios {median(a / b for a, b in times):.3f}; "
        f"{written / len(times) / 1e3:.1f} kB a step are written"
    )


if __name__ == "__main__":
    main()
