"""Traces written by hand, for laws to be tried on.

    run = a_run(
        [forward(), backward(), step()],            # rank 0
        [forward(), backward(), step()],            # rank 1
        backend="ddp", world_size=2,
    )

Each event gets the common fields: rank, seq, time, its own line in train.py (its place in the list, from 1),
and window and micro-batch. A forward with ``window=k`` opens window k; others belong to the current window.
"""

from __future__ import annotations

import copy
from typing import get_type_hints

from conformance.laws.subjects import Run
from conformance.trace.events import KINDS, Event, check_all, hints, is_required

SPEC = {
    "case": "by-hand",
    "backend": "single",
    "world_size": 1,
    "accumulation": 1,
    "micro_batch_size": 2,
    "steps": 2,
    "epochs": [0],
    "precision": "fp32",
    "loss": "mean",
    "device": "cpu",
    "model": {"kind": "linear", "features": 1, "bias": True, "weights": [[1.0, 0.5]]},
    "samples": {"x": [[1.0], [2.0], [3.0], [4.0]], "y": [2.0, 4.0, 6.0, 8.0], "weight": [1.0] * 4},
    "orders": [[[[0, 1], [2, 3]]]],
    "groups": [],
    "optimizer": {"kind": "sgd", "lr": 0.5},
    "schedule": None,
    "schedule_by": "step",
    "clip": None,
    "scaler": None,
}

#: Plausible values of fields, for all events and for events of some kinds; other fields are null, zero or empty.
PLAUSIBLE = {
    "parameters": [0, 1],
    "trainable": [0, 1],
    "rows": [0, 1],
    "group": [0, 1],
    "bytes": 8,
    "elements": 2,
    "peer": 0,
    "op": "allreduce_",
    "reduce": "sum",
    "via": "c10d",
    "phase": "training",
    "during": None,
    "gradients": [1.0, 1.0],
    "weights": [0.5, 0.0],
    "scale": 1024.0,
    "scale_before": 1024.0,
    "scale_after": 1024.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "threshold": 1.0,
    "norm_type": 2.0,
    "norm": 2.0,
    "kind": "norm",
    "by": "optimizer",
    "lr": 0.5,
    "lr_before": [0.5],
    "lr_after": [0.25],
    "found_inf": False,
    "training": True,
    "set_to_none": True,
    "state": "same",
    "wrapper": "DistributedDataParallel",
    "root": None,
}
OF_KIND = {
    "forward": {"weights": None, "wrapper": None},
    "backward_begin": {"gradients": "none"},
    "groups": [],
    "optimizer": {"type": "SGD", "state": False},
    "start": {"weights": [1.0, 0.5]},
    "send": {"peer": 1},
    "step": {"scale": None},
    "skip": {"gradients_finite": False, "gradients": ["inf", 1.0], "weights": [1.0, 0.5]},
    "zero_grad": {"optimizer": 0},
    "schedule": {"optimizer": 0},
    "raised": {"type": "RuntimeError", "message": "something"},
}
#: Counters over the events of a rank.
COUNTED = ("forward", "step", "backward", "forwards")


def _defaults(kind):
    own = hints(KINDS[kind]).keys() - hints(Event).keys() - {"at", *COUNTED}
    plausible, types = {**PLAUSIBLE, **OF_KIND.get(kind, {})}, get_type_hints(KINDS[kind])
    return {
        name: plausible[name] if name in plausible else _simplest(types[name]) for name in own if _is_given(kind, name)
    }


def _is_given(kind, field):
    """Whether events by hand have a field: not if it is optional and has no plausible value."""
    return is_required(KINDS[kind], field) or field in PLAUSIBLE


def _simplest(hint):
    """The simplest value of a type that is a class, or may be None."""
    return hint() if isinstance(hint, type) else None


DEFAULTS = {kind: _defaults(kind) for kind in KINDS}


def whole(line):
    """The line with exactly the fields of its kind; missing ones are null, zero or empty."""
    kind = KINDS[line["event"]]
    plain = get_type_hints(kind)
    fields = [name for name in hints(kind) if name in line or is_required(kind, name)]
    return {"event": kind.event, **{name: line.get(name, _simplest(plain[name])) for name in fields}}


#: Windows of two micro-batches of one sample.
TWO = {"accumulation": 2, "micro_batch_size": 1, "orders": [[[[0], [1], [2], [3]]]]}


def event(kind, /, **fields):
    """One event; fields that are not given have plausible values."""
    return {"event": kind, **copy.deepcopy(DEFAULTS[kind]), **fields}


def forward(window=None, **fields):
    return event("forward", window=window, **fields)


def backward(**fields):
    """A whole backward pass: its beginning and its end, with the given fields of either."""
    begin = {name: value for name, value in fields.items() if name in DEFAULTS["backward_begin"]}
    end = {name: value for name, value in fields.items() if name not in begin}
    return [event("backward_begin", **begin), event("backward_end", **end)]


def micro_batch(window=None, **fields):
    """A forward, and a backward with these fields."""
    return [forward(window), backward(**fields)]


def step(**fields):
    return event("step", **fields)


def clear(**fields):
    return event("zero_grad", **fields)


def hold(optimizer, *parameters, **fields):
    """Creates an optimizer of these parameters."""
    return event("optimizer", optimizer=optimizer, parameters=[*parameters], trainable=[*parameters], **fields)


def windows(*bodies):
    """Windows of one micro-batch each, cleared at their end, with something before the step."""
    return [[micro_batch(number), body, step(), clear()] for number, body in enumerate(bodies)]


def right(samples, factor=1.0):
    """The mean gradient of these samples of the default spec, at its weights, times a factor."""
    [[slope, bias]] = SPEC["model"]["weights"]
    residuals = [(n + 1.0, slope * (n + 1.0) + bias - 2.0 * (n + 1.0)) for n in samples]
    count = len(residuals)
    return [factor * sum(2 * r * x for x, r in residuals) / count, factor * sum(2 * r for _, r in residuals) / count]


def a_run(*ranks, **changes):
    """A run of these ranks' events (lists may be nested); each rank finished unless it raised."""
    spec = {**copy.deepcopy(SPEC), "world_size": len(ranks), **changes}
    [order] = spec["orders"]
    if len(order) < len(ranks):
        spec["orders"] = [order * len(ranks)]
        spec["model"]["weights"] = spec["model"]["weights"] * len(ranks)
    traces = [_lines(rank, events) for rank, events in enumerate(ranks)]
    for rank, lines in enumerate(traces):
        check_all(lines, rank)
    return Run.read(spec, traces)


def _flat(events):
    for entry in events:
        yield from _flat(entry) if isinstance(entry, list) else [entry]


def _lines(rank, events):
    events = list(_flat(events))
    if not any(entry["event"] in ("finished", "raised") for entry in events):
        events.append(event("finished"))
    window = micro_batch = None
    counts = {"forward": 0, "backward_begin": 0, "step": 0}
    lines = []
    for seq, entry in enumerate(events):
        entry = dict(entry)
        kind = entry["event"]
        if kind == "forward":
            opened = entry.pop("window")
            if window is None or opened not in (None, window):
                window, micro_batch = opened or 0, 0
            else:
                micro_batch += 1
            entry.setdefault("forward", counts[kind])
        if kind == "step":
            entry.setdefault("step", counts[kind])
        if kind in ("step", "skip"):
            entry.setdefault("forwards", counts["forward"])
        if kind in ("backward_begin", "backward_end"):
            entry.setdefault("backward", counts["backward_begin"] - (kind == "backward_end"))
        if kind == "backward_begin" and entry["root"] is None:
            entry["root"] = entry["backward"]
        if kind == "backward_end":
            entry.setdefault("forwards", [counts["forward"] - 1])
        if kind in counts:
            counts[kind] += 1
        lines.append(
            {
                "rank": rank,
                "seq": seq,
                "time": float(seq),
                "window": window,
                "micro_batch": micro_batch,
                "where": ["train.py", seq + 1, "train"],
                **entry,
            }
        )
    return lines
