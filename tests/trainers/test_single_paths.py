"""The reference trainers of one device, against the formulas in float64."""

from __future__ import annotations

import pytest

from conformance.adapter import loading

from .tasks import WORKLOADS, check, make_spec, of_kind, overflowing, scaler, train

PATHS = {
    "single": {"accumulation": 8, "size": 1},
    "batched": {"accumulation": 1, "size": 8},
    "accumulated": {"accumulation": 2, "size": 4},
}

PRECISIONS = ["fp64", "fp32", "bf16", "fp16"]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("path", PATHS)
def test_all_paths_follow_the_formulas(path, precision, workload):
    spec = make_spec(**PATHS[path], steps=3, precision=precision, scaler=scaler(), **WORKLOADS[workload])
    events = train(loading.load(path)[0], spec)
    check(spec, events)


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_a_short_last_window_is_averaged_by_its_true_length(loss):
    """16 samples in windows of 3 x 4: the last holds one micro-batch."""
    spec = make_spec(accumulation=3, size=4, precision="fp64", loss=loss)
    events = train(loading.load("accumulated")[0], spec)
    assert [step["forwards"] for step in of_kind(events, "step")] == [3, 4]
    check(spec, events)


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_a_smaller_last_micro_batch_counts_by_its_size(loss):
    """8 samples in micro-batches of 3, 3, 2: not a mean of three means."""
    spec = make_spec(accumulation=3, size=3, steps=1, precision="fp64", loss=loss)
    check(spec, train(loading.load("accumulated")[0], spec))


@pytest.mark.parametrize("path", PATHS)
def test_an_overflow_is_skipped(path):
    """Weights, optimizer state and schedule stay as they were, though it is the first step of all."""
    spec = overflowing(**PATHS[path])
    events = train(loading.load(path)[0], spec)
    [skip] = of_kind(events, "skip")
    assert skip["weights"] == [0.5, -0.5, 0.25]
    assert (skip["scale"], skip["gradients_finite"]) == (1024.0, False)
    updates = [(update["scale_before"], update["scale_after"]) for update in of_kind(events, "update")]
    assert updates == [(1024.0, 512.0), (512.0, 512.0), (512.0, 512.0)]
    assert [step["lr"] for step in of_kind(events, "step")] == [0.0625, 0.03125]
    check(spec, events, skipped=frozenset({0}))


@pytest.mark.parametrize("path", PATHS)
def test_a_growing_scale_changes_nothing_but_the_scale(path):
    spec = make_spec(**PATHS[path], steps=4, precision="fp16", scaler=scaler(growth_interval=1))
    spec["schedule"] = [1.0, 0.5, 0.25, 0.125]
    events = train(loading.load(path)[0], spec)
    assert [step["scale"] for step in of_kind(events, "step")] == [1024.0, 2048.0, 4096.0, 8192.0]
    check(spec, events)


@pytest.mark.parametrize("path", PATHS)
def test_every_sample_is_read_once(path):
    spec = make_spec(**PATHS[path], steps=2)
    events = train(loading.load(path)[0], spec)
    rows = [row for forward in of_kind(events, "forward") for row in forward["rows"]]
    assert rows == list(range(16))
