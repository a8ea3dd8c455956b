"""How fast laws are checked, and whether the time is linear in the number of events.

    python benchmarks/laws.py [--steps 2400] [--repetitions 3]

It generates the trace of a correct run, of two ranks under DDP in fp16 with two micro-batches per window, and a trace
four times as long, as JSON. It measures three times of each: reading (the json module, a document per rank, and a check
of the fields, as for outcomes), decoding (JSON objects become events and windows), and checking all laws. The result is
decoding plus checking, in processor time, the minimum of several repetitions; the two lengths take turns.
"""

from __future__ import annotations

import argparse
import json
from itertools import count
from time import process_time
from typing import Any

from conformance.laws.checking import check
from conformance.laws.subjects import Run, no_cyclic_collection
from conformance.trace.events import check_all

SCALE = 1024.0
XS = (1.0, 2.0, -1.0, 0.5, -2.0, 1.5, -0.5, 3.0)
YS = (1.0, 3.0, -2.0, 0.5, -3.0, 2.5, -1.5, 4.0)
SAMPLES = {"x": [[x] for x in XS], "y": list(YS), "weight": [1.0] * len(XS)}
RATE = 2.0**-6


def spec(steps: int) -> dict[str, Any]:
    return {
        "case": "benchmark", "backend": "ddp", "world_size": 2, "accumulation": 2, "micro_batch_size": 2,
        "steps": steps, "epochs": [0] * steps, "precision": "fp16", "loss": "mean", "device": "cpu",
        "model": {"features": 1, "bias": True, "weights": [[0.0, 0.0]] * 2}, "samples": SAMPLES,
        "orders": [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]], "optimizer": {"kind": "sgd", "lr": RATE},
        "schedule": None, "clip": None, "scaler": {"init_scale": SCALE},
    }  # fmt: skip


def trace(rank: int, steps: int) -> list[str]:
    """The lines of one rank: full-batch descent along the mean gradient."""
    lines: list[str] = []
    seq = count()
    window: int | None = None
    micro_batch: int | None = None

    def note(event: str, **fields: Any) -> None:
        number = next(seq)
        head = {"event": event, "rank": rank, "seq": number, "time": number / 1e4, "window": window}
        where = ["train.py", 20 + len(event), "train"]
        lines.append(json.dumps({**head, "micro_batch": micro_batch, "where": where, **fields}))

    slope = bias = 0.0
    both = [0, 1]
    note("started", pid=1)
    note("model", model=0, shapes=[[1, 1], [1]])
    note("wrap", model=0, wrapper="DistributedDataParallel", find_unused=False)
    note(
        "optimizer", optimizer=0, type="SGD", parameters=both, trainable=both, horovod=False,
        backward_passes_per_step=None, state=False,
    )  # fmt: skip
    for step in range(steps):
        note("zero_grad", by="optimizer", optimizer=0, parameters=both, set_to_none=True)
        if step == 0:
            note("start", weights=[slope, bias])
        for index in range(2):
            last = index == 1
            if not last:
                note("no_sync_enter")
            note("autocast_enter", device="cpu", dtype="float16", enabled=True)
            window, micro_batch = step, index
            number = 2 * step + index
            note(
                "forward", forward=number, rows=[4 * rank + 2 * index, 4 * rank + 2 * index + 1],
                wrapper="DistributedDataParallel", syncs=last, computes="float16",
                weights=None if last else [slope, bias],
            )  # fmt: skip
            note("autocast_exit", device="cpu", dtype="float16", enabled=True)
            note("loss_scaled", scaler=0, scale=SCALE)
            note("backward_begin", backward=number, root=number, syncs=last, gradients="some" if last else "none")
            if last:
                note(
                    "collective", op="allreduce_", bytes=8, elements=2, reduce="sum", group=both, via="c10d",
                    phase="training", during="backward", of="gradients",
                )  # fmt: skip
            note("backward_end", backward=number, forwards=[number], scaled=SCALE)
            if not last:
                note("no_sync_exit")
        residuals = [slope * x + bias - y for x, y in zip(XS, YS, strict=True)]
        gradients = [2 * sum(r * x for r, x in zip(residuals, XS, strict=True)) / len(XS), 2 * sum(residuals) / len(XS)]
        slope, bias = slope - RATE * gradients[0], bias - RATE * gradients[1]
        note("scaler_step", scaler=0, optimizer=0, scale=SCALE, state="none")
        note("unscale", scaler=0, optimizer=0, scale=SCALE, implicit=True, found_inf=False)
        note(
            "step", step=step, forwards=2 * step + 2, gradients=gradients, weights=[slope, bias], lr=RATE, scale=SCALE,
            optimizer=0, parameters=both, synchronizes=None,
        )  # fmt: skip
        note(
            "update", scale_before=SCALE, scale_after=SCALE, growth_factor=2.0, backoff_factor=0.5,
            growth_interval=10**6, scaler=0,
        )  # fmt: skip
    note("finished", weights=[slope, bias])
    return lines


def times(plan: dict[str, Any], ranks: list[list[str]]) -> tuple[float, float, float]:
    """Seconds for reading, decoding and checking.

    Raises:
        AssertionError: a law was broken.
    """
    began = process_time()
    parsed = [json.loads("[" + ",".join(lines) + "]") for lines in ranks]
    for rank, lines in enumerate(parsed):
        check_all(lines, rank)
    read = process_time()
    # Once around both, as in a judgement.
    with no_cyclic_collection():
        run = Run.read(plan, parsed)
        decoded = process_time()
        verified = check(run)
    ended = process_time()
    broken = [one.law.id for one in verified if one.findings]
    if broken:
        raise AssertionError(f"a correct run breaks {', '.join(broken)}")
    return read - began, decoded - read, ended - decoded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2400, help="steps of the shorter run (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()
    # A test runs this file's other functions without its folder on the path.
    from measuring import note

    lengths = (options.steps, 4 * options.steps)
    made = {steps: (spec(steps), [trace(rank, steps) for rank in range(2)]) for steps in lengths}
    least: dict[int, tuple[float, ...]] = {}
    for _ in range(options.repetitions):
        for steps, run in made.items():
            taken = times(*run)
            least[steps] = tuple(map(min, zip(taken, least.get(steps, taken), strict=True)))
    for steps, (reading, decoding, checking) in least.items():
        events = sum(map(len, made[steps][1]))
        each = " ".join(
            f"{what} {1e6 * seconds / events:.1f}"
            for what, seconds in (("read", reading), ("decode", decoding), ("check", checking))
        )
        rate = 60 * events / (decoding + checking) / 1e6
        print(f"{steps} steps, {events} events: {rate:.1f} million per minute (µs per event: {each})")
        note(f"events checked in {steps} steps", "10 million a minute", rate / 10, "at least 1")
    short, long = (sum(least[steps][1:]) for steps in lengths)
    print(f"four times the steps take {long / short:.1f} times as long")
    note("laws of four times the steps", "one time", long / short, "4")


if __name__ == "__main__":
    main()
