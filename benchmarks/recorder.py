"""The recorder's overhead per optimizer step: for the standard workload, and for a transformer.

    python benchmarks/recorder.py [--rounds 30]

Each loop trains with and without the recorder, in turns in this process and on one thread. It compares the processor
time of this process, which other processes disturb less than wall time. Events are written, line by line, to the null
device.

1. The standard workload: gradient accumulation over two micro-batches, fp16, in the reference trainer. The model has
   three parameters, and every event lists their values: the time of a step is dominated by the recorder.
2. A transformer of ten million parameters, six layers of width 384: a GradScaler, clipping by norm, AdamW, a schedule.
   For a model of this size no values are read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import process_time
from typing import Any

import torch
from measuring import note, show

from conformance.adapter.task import Task
from conformance.cases.case import Case
from conformance.runner.system.protocol import encode
from conformance.trace.recorder import Recorder
from conformance.trainers.accumulated import train

STANDARD = Case("single", world_size=1, accumulation=2, precision="fp16", workload="momentum")
LAYERS, HEADS, WIDTH = 6, 6, 384
BATCH, LENGTH = 2, 32
STEPS = 4

Row = tuple[str, str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description="The recorder's overhead per optimizer step.")
    parser.add_argument("--rounds", type=int, default=30, help="runs of each loop (default: %(default)s)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)

    def emit(event: dict[str, Any]) -> None:
        os.write(nowhere, encode(event))

    show(
        f"The recorder's overhead per optimizer step, medians of {rounds} rounds in turns",
        ("", "ms per step, bare", "recorded", "ratio", "bare again"),
        [list(standard(emit, rounds)), list(transformer(emit, rounds))],
        "Ratios are medians of the rounds' ratios; the bare loop's ratio to itself shows the noise.",
    )


def standard(emit: Callable[[dict[str, Any]], None], rounds: int) -> Iterator[Row]:
    spec = STANDARD.spec()

    steps: int = spec["steps"]

    def run(recorder: Recorder | None) -> float:
        began = process_time()
        train(Task(spec, 0, recorder))
        return (process_time() - began) / steps

    yield compared(f"the case {STANDARD.id}", lambda: Recorder(emit, spec), run, rounds)


def transformer(emit: Callable[[dict[str, Any]], None], rounds: int) -> Iterator[Row]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs, targets = torch.randn(2, BATCH, LENGTH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    def watching() -> Recorder:
        recorder = Recorder(emit)
        recorder.watch(model)
        return recorder

    def run(_recorder: Recorder | None) -> float:
        # The first step includes costs that a training run has only once.
        step()
        began = process_time()
        for _ in range(STEPS):
            step()
        return (process_time() - began) / STEPS

    elements = sum(parameter.numel() for parameter in model.parameters())
    yield compared(f"a transformer of {elements / 1e6:.1f} million parameters", watching, run, rounds)


def compared(name: str, recording: Callable[[], Recorder], run: Callable[[Recorder | None], float], rounds: int) -> Row:
    """Compares the seconds per step that `run` returns, with and without the recorder."""

    def seconds(context: AbstractContextManager[Recorder | None]) -> float:
        with context as recorder:
            return run(recorder)

    # The first run includes torch's initialisation.
    seconds(nullcontext())
    found = [(seconds(nullcontext()), seconds(recording()), seconds(nullcontext())) for _ in range(rounds)]
    bare, recorded, _ = (median(times) for times in zip(*found, strict=True))
    # Between two bare runs, so slow drift affects both sides.
    ratio = median(2 * recorded / (before + after) for before, recorded, after in found)
    noise = median(after / before for before, _, after in found)
    note(f"a recorded step of {name}", "a bare one", ratio, "")
    return name, f"{bare * 1e3:.3f}", f"{recorded * 1e3:.3f}", f"{ratio:.3f}", f"{noise:.3f}"


if __name__ == "__main__":
    main()
