"""A small results file as a run would write it, with every verdict and plausible numbers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction as F
from pathlib import Path

from conformance.results import ResultsWriter
from conformance.results.plain import record
from conformance.results.result_lines import CaseRecord, Header, Mutants

from .regression import PARAMETERS, Bug, Case, steps_of

PRECISIONS = {"fp64": 53, "fp32": 24, "bf16": 8, "fp16": 11}
WORKLOADS = ("line", "two-workers", "momentum-clip-value", "weighted", "adamw-noisy")
HOSTILE = "</script><img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \u2028 \u202egnp.exe"
TRACEBACK = """Traceback (most recent call last):
  File "my_loop.py", line 41, in train
    scaler.step(optimizer)
  File "torch/amp/grad_scaler.py", line 457, in step
    len(optimizer_state["found_inf_per_device"]) > 0
AssertionError: No inf checks were recorded for this optimizer."""
STACK = """Thread 0x00007f3c (most recent call first):
  File "torch/distributed/distributed_c10d.py", line 3085 in all_reduce
  File "my_loop.py", line 58 in average_gradients
  File "my_loop.py", line 36 in train"""


def ranks_of(world: int, steps: int, **extra: object) -> list[Case]:
    calls = {"allreduce_": {"count": steps, "bytes": 12 * steps}, "broadcast_": {"count": 2, "bytes": 24}}
    return [
        {"rank": r, "exit": "exited 0", "output": "", "collectives": calls if world > 1 else {}, **extra}
        for r in range(world)
    ]


def traffic_of(world: int) -> Case | None:
    """The traffic of three gradient elements, all passed to all-reduce."""
    none = {"sent": 0, "received": 0, "other": 2.5, "expected_sent": 0, "expected_received": 0}
    one = {**none, "reduced": 12, "ring": 24 * (world - 1) / world, "expected_reduced": 12}
    return {"gradient": 12, "ranks": [one] * world} if world > 1 else None


def passing(trainer: str, backend: str, world: int, accumulation: int, precision: str, workload: str) -> Case:
    """A passing case: exact, or bounded for the workload that rounds."""
    path = backend if world == 1 else f"{backend}-w{world}"
    path += f"-acc{accumulation}" if accumulation > 1 else ""
    bits, bounded = PRECISIONS[precision], workload.startswith("adamw")
    count = 40 if bounded else 6
    rows = steps_of(count, bits, bounded=bounded)
    stages = [
        ("forward", bits - 4, bits, 1),
        ("backward", bits - 2, bits, 0),
        ("reduce", bits - 3, bits, 4),
        ("optimizer", 15, 24, 5),
    ]
    reason = "AdamW divides by the root of the second moment, which is irrational at step 0"
    case: Case = {
        "id": f"{path}-{precision}-{workload}", "trainer": trainer,
        "target": f"conformance.trainers.{trainer}",
        "backend": backend, "layout": "accumulated" if accumulation > 1 else "batched", "world_size": world,
        "accumulation": accumulation, "micro_batch_size": 12 // world // accumulation, "precision": precision,
        "workload": workload, "device": "cpu", "path": path, "seconds": 0.09 + 0.013 * world,
        "verdict": "PASS (bounded)" if bounded else "PASS (exact)",
        "headline": "within the bound at every step" if bounded else "bit-identical after every step",
        "notes": [], "command": f"conformance run {trainer} --case {path}-{precision}-{workload}",
        "certificate": {"exact": not bounded, "reason": reason if bounded else None, "stages": [
            {"stage": name, "bits": need, "available": have, "step": at, "exact": True}
            for name, need, have, at in ([] if bounded else stages)]},
        "power": {"value": 41.3 if bounded else "inf", "fault": "divided by the nominal window length",
                  "text": "One sample moved to the next rank is seen, too."},
        "guards": [
            {"name": "world size", "holds": True, "expected": str(world), "observed": str(world)},
            {"name": "optimizer steps", "holds": True, "expected": str(count), "observed": str(count)},
            {"name": "shards differ", "holds": True, "expected": "disjoint", "observed": "disjoint"},
            {"name": "weights moved", "holds": True, "expected": "yes", "observed": "yes"},
        ],
        "parameters": PARAMETERS, "steps": rows, "skips": [], "scales": [], "diverged": None,
        "first_difference": None,
        "behaviour": [{"way": "last_window=step"}] if accumulation == 3 else [],
        "ranks": ranks_of(world, count), "traffic": traffic_of(world),
    }  # fmt: skip
    if precision == "fp16" and not bounded:
        for row in rows:
            row["window"] += row["step"] >= 2
        case |= {"skips": [2], "scales": [65536.0] * 3 + [32768.0] * 4}
    return case


def failing(case: Case, bug: Bug, known: str | None, verdict: str = "FAIL (numerics)") -> Case:
    """`case` with a trainer that has `bug`."""
    rows = steps_of(len(case["steps"]), PRECISIONS[case["precision"]], bug)
    first = next(row for row in rows if any(row["error"]))
    i = next(i for i, error in enumerate(first["error"]) if error)
    difference = {"step": first["step"], "quantity": "weights", "parameter": PARAMETERS[i], "bound": 0.0}
    difference |= {name: first[name][i] for name in ("expected", "observed", "error")}
    headline = f"weights differ from step {first['step']} on"
    changes = {"verdict": verdict, "steps": rows, "first_difference": difference}
    changes["explained_by"] = [known] if known else []
    return case | changes | {"headline": headline, "skips": [], "scales": []}


def idle(case: Case, verdict: str, reason: str) -> Case:
    """`case` as recorded when it does not run."""
    empty: Case = {"certificate": None, "power": None, "guards": [], "steps": [], "ranks": [], "seconds": None}
    return case | empty | {"verdict": verdict, "headline": reason, "skips": [], "scales": [], "behaviour": []}


def references() -> Iterator[Case]:
    """The reference trainers: all correct, Horovod not installed."""
    for workload in WORKLOADS:
        for precision in PRECISIONS:
            for world, accumulation in ((1, 1), (1, 2), (1, 3)):
                yield passing("single", "single", world, accumulation, precision, workload)
            for world, accumulation in ((2, 1), (2, 2), (4, 1)):
                yield passing("ddp", "ddp", world, accumulation, precision, workload)
        horovod = passing("horovod", "horovod", 2, 1, "fp32", workload)
        yield idle(horovod, "UNAVAILABLE", "horovod is not installed: pip install horovod==0.28.1")
        cuda = passing("ddp", "ddp", 2, 1, "fp16", workload)
        cuda |= {"device": "cuda", "id": cuda["id"] + "-cuda"}
        yield idle(cuda, "UNAVAILABLE", "this machine has no CUDA device")


BUGS = {
    "sum-over-window": "adds up the micro-batches without dividing by their number",
    "window-divided-twice": "divides by the accumulation length twice",
}
LAWS = [
    {"law": "amp/unscale-before-clip", "level": "MUST", "says": "Gradients MUST be unscaled before they are clipped."},
    {"law": "amp/update-once", "level": "MUST", "says": "The scale MUST be updated once a window."},
    {"law": "ddp/all-reduce-once", "level": "SHOULD", "says": "Gradients SHOULD be all-reduced once a window."},
]


def finding(level: str) -> Case:
    """A finding: a broken law of that level."""
    text = next(law for law in LAWS if law["level"] == level)
    return {
        **text,
        "expected": "`unscale_` before `clip_grad_norm_`",
        "observed": "clip (my_loop.py:41) came before unscale (my_loop.py:43)",
        "why": "clipping compares the norm with 1, but gradients carry the loss scale 1024",
        "fix": "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "count": 12, "ranks": [0, 1], "window": 0, "where": "my_loop.py:41",
        "effect": "The threshold was in effect 1 / 1024.",
        "numbers": "The numbers of this case are correct anyway.",
        "slice": [moment(0, 2.1, "clip", "clip norm 1 (of norm 3.2)", 41, marked=True),
                  moment(0, 2.3, "unscale", "unscale ÷ 1024", 43)],
    }  # fmt: skip


def moment(rank: int, time: float, event: str, label: str, line: int | None, **more: object) -> Case:
    return {"rank": rank, "time": time, "event": event, "label": label, **more} | (
        {"where": f"my_loop.py:{line}"} if line else {}
    )


def timeline(ranks: int = 2) -> Case:
    """Both ranks clip too early; rank 1 has one more event, and meets the other in an all-reduce."""
    moments, joined = [], []
    for rank in range(ranks):
        late = rank / 10
        moments += [moment(rank, 0.1 + late, "forward", "forward through DistributedDataParallel", 31)]
        moments += [moment(rank, 0.5 + late, "zero_grad", "zero grad", 33)] if rank == 1 else []
        moments += [moment(rank, 1.0 + late, "backward_begin", "backward", 35)]
        joined.append(len(moments))
        moments += [moment(rank, 1.5 + late, "collective", "allreduce (gradients, 12 B)", None)]
        moments += [moment(rank, 2.1 + late, "clip", "clip norm 1 (of norm 3.2)", 41, marked=True)]
        moments += [moment(rank, 2.3 + late, "unscale", "unscale ÷ 1024", 43)]
        moments += [moment(rank, 2.9 + late, "step", "step 0 by the scaler", 45)]
    return {"window": 0, "moments": moments, "joins": [{"moments": joined}], "cut": 0}


def my_loop() -> Iterator[Case]:
    """A user's trainer with several bugs."""

    def base(world: int, accumulation: int, precision: str, workload: str) -> Case:
        case = passing("my_loop", "ddp", world, accumulation, precision, workload)
        return case | {"target": "my_loop.py:train", "command": f"conformance run my_loop.py --case {case['id']}"}

    summed = "sum-over-window"
    for workload in WORKLOADS[:4]:
        yield base(2, 1, "fp32", workload)
        wrong = failing(base(2, 2, "fp32", workload), lambda g, k: [2 * v for v in g], summed)
        yield wrong | {"power": {"value": "inf", "fault": "sum over ranks", "text": "At step 0 already."}}
        late = failing(base(3, 2, "fp32", workload), lambda g, k: [v * F(1 + (k > 2), 1) for v in g], None)
        yield late
        yield idle(base(2, 1, "fp16", workload), "UNSUPPORTED", "my_loop.py does not declare precision fp16")
    apart = failing(base(2, 2, "bf16", "line"), lambda g, k: [v + F(k, 64) for v in g], None, "DIVERGED")
    weights = [row["observed"] for row in apart["steps"][1:2]] + [apart["steps"][1]["expected"]]
    yield apart | {"headline": "ranks 0 and 1 differ after step 1", "diverged": {"step": 1, "weights": weights}}
    crash = base(2, 2, "bf16", "two-workers") | {"verdict": "CRASH", "steps": [], "certificate": None, "power": None}
    crash["headline"] = "rank 1 raised AssertionError: No inf checks were recorded for this optimizer."
    crash["ranks"] = ranks_of(2, 0, output=f"epoch 0\nwarning: {HOSTILE}\n" * 3)
    crash["ranks"][1] |= {"exit": "exited 1 before it finished", "traceback": TRACEBACK}
    yield crash
    hang = base(2, 2, "bf16", "weighted") | {"verdict": "HANG", "certificate": None, "power": None}
    hang["headline"] = "no end within 20 s: rank 0 waits in all_reduce, rank 1 has finished"
    hang["steps"] = hang["steps"][:2]
    hang["ranks"] = ranks_of(2, 2)
    hang["ranks"][0] |= {"exit": "killed at the time limit", "stack": STACK}
    yield hang
    weak = base(2, 1, "bf16", "adamw-noisy") | {"verdict": "INCONCLUSIVE"}
    weak |= {"headline": "the bound is wider than the smallest bug: power 0.4, needed 4"}
    weak |= {"power": {"value": 0.4, "fault": "weight decay applied twice", "text": None}}
    yield weak
    law = base(2, 1, "bf16", "momentum-clip-value") | {
        "verdict": "FAIL (law)",
        "headline": "amp/unscale-before-clip: clip (my_loop.py:41) came before unscale (my_loop.py:43)",
        "laws": {"amp/unscale-before-clip": 12, "ddp/all-reduce-once": 12},
        "findings": [finding("MUST"), finding("SHOULD")],
        "timeline": timeline(),
    }
    yield law | {"notes": ["The numbers are still correct: no gradient was long enough to be clipped."]}
    lost = failing(base(2, 1, "bf16", "line"), lambda g, k: g if k < 2 else [v + F(1, 8) for v in g], None)
    lost["steps"][4]["observed"][0] = lost["steps"][4]["error"][0] = lost["steps"][4]["ulp"][0] = float("nan")
    lost["guards"][2] |= {"holds": False, "observed": "ranks 0 and 1 read the same 6 samples"}
    yield lost | {"headline": "weight[0] is not a number after step 4"}


def all_cases() -> list[Case]:
    """About 150 cases, with every verdict."""
    return [*references(), *my_loop()]


def mutants() -> list[Case]:
    """Two rows of the table of mutants and checks, one not caught."""
    return [
        {"mutant": "sum_over_ranks", "what": "the all-reduce sums and nobody divides", "caught": True,
         "verdicts": {"ddp-w2-fp32-line": "FAIL (numerics)", "single-fp32-line": "PASS (exact)"},
         "by": ["weights"], "laws": ["ddp/all-reduce-once"]},
        {"mutant": "no_broadcast", "what": "ranks start from different weights", "caught": False,
         "verdicts": {"ddp-w2-fp32-line": "PASS (exact)"}, "by": []},
    ]  # fmt: skip


def write(path: Path, cases: list[Case] | None = None, planned: int | None = None) -> None:
    """Writes a results file with these cases; with more `planned` than given, it is that of a run that was
    stopped.
    """
    cases = all_cases() if cases is None else cases
    header = {
        "tool": "trainer-conformance", "version": "0.1.0", "started": "2026-01-05T09:12:44+00:00",
        "seed": 20260105, "command": "conformance run my_loop.py --output out",
        "planned": len(cases) if planned is None else planned,
        "machine": {"python": "3.11.7", "platform": "Linux-6.1-x86_64", "cpus": 2, "torch": "2.13.0+cpu",
                    "cuda": None, "horovod": None},
        "laws": LAWS, "bugs": BUGS,
    }  # fmt: skip
    with ResultsWriter(path, record(Header, header)) as writer:
        for case in cases:
            writer.case(record(CaseRecord, case))
        writer.mutants(record(Mutants, {"rows": mutants()}))
