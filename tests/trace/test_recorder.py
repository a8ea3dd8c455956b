"""The recorder as a whole: it changes nothing, and nothing of it stays."""

from __future__ import annotations

import json
from contextlib import ExitStack

import horovod.torch.mpi_ops
import pytest
import torch
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

from conformance.runner.client import ForkServer
from conformance.trace.events import KINDS
from conformance.trace.recorder import Recorder
from conformance.trainers import loading

from ..trainers.tasks import make_spec, overflowing, scaler, train

TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"

PATHS = {
    "single": {"backend": "single", "accumulation": 8, "size": 1},
    "batched": {"backend": "single", "size": 8},
    "accumulated": {"backend": "single", "accumulation": 2, "size": 4},
    "ddp": {"backend": "ddp", "accumulation": 2, "size": 2, "world_size": 2},
    "horovod": {"backend": "horovod", "accumulation": 2, "size": 2, "world_size": 2},
    "horovod_plain": {"backend": "horovod", "accumulation": 2, "size": 2, "world_size": 2},
}


def state_of_torch():
    """Whatever the recorder touches while it is on."""
    scaler_classes = [torch.amp.GradScaler, *torch.amp.GradScaler.__subclasses__()]
    return {
        **{f"{owner.__module__}.{owner.__name__}": dict(vars(owner)) for owner in scaler_classes},
        "horovod": dict(vars(horovod.torch.mpi_ops)),
        "optimizer hooks": [
            dict(torch_optimizers._global_optimizer_pre_hooks),
            dict(torch_optimizers._global_optimizer_post_hooks),
        ],
        "module hooks": {key: dict(value) for key, value in vars(torch_modules).items() if _is_hooks(key, value)},
        "library": set(torch.library._impls),
        "kernels": [
            torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key)
            for name in ("allreduce_", "barrier")
            for key in ("AutogradCPU", "AutogradCUDA")
        ],
    }


def _is_hooks(key, value):
    return key.startswith("_global") and isinstance(value, dict)


def test_nothing_stays(record):
    """What is replaced is put back: the very same objects."""
    before = state_of_torch()
    recording = record()
    during = state_of_torch()
    recording.recorder.__exit__(None, None, None)
    assert {key for key in before if before[key] != during[key]} >= {
        "torch.amp.grad_scaler.GradScaler",
        "horovod",
        "optimizer hooks",
        "module hooks",
        "library",
        "kernels",
    }
    assert state_of_torch() == before


def test_nothing_stays_after_an_error():
    before = state_of_torch()
    with pytest.raises(MemoryError), Recorder(print, make_spec(), 0):
        raise MemoryError
    assert state_of_torch() == before


@pytest.fixture(scope="module")
def servers():
    """The same training with the recorder and with the recorder taken off, a server for each and each
    backend."""
    with ExitStack() as stack:
        yield {
            (function, backend): stack.enter_context(ForkServer(f"{TRAINERS}:{function}", backend=backend))
            for function in ("recorded", "unrecorded")
            for backend in ("single", "ddp", "horovod")
        }


@pytest.mark.parametrize(
    ("path", "precision"),
    [
        (path, precision)
        for path in PATHS
        for precision in ("fp32", "bf16", "fp16")
        if (path, precision) != ("horovod_plain", "fp16")
    ],
)
def test_it_changes_no_bit(servers, path, precision):
    """Real data, so that every rounding counts, in all ranks of every path."""
    spec = make_spec(**PATHS[path], case=path, steps=3, precision=precision, scaler=scaler())
    spec["samples"]["x"] = [[value / 3 for value in row] for row in spec["samples"]["x"]]
    outputs = {}
    for function in ("recorded", "unrecorded"):
        outcome = servers[function, spec["backend"]].run(spec, time_limit=60.0)
        assert all(rank.finished for rank in outcome.ranks)
        outputs[function] = [rank.output for rank in outcome.ranks]
        steps = [event for event in outcome.ranks[0].events if event["event"] == "step"]
        assert len(steps) == (3 if function == "recorded" else 0)
    assert outputs["recorded"] == outputs["unrecorded"]
    assert outputs["recorded"][0].startswith("['")


def test_it_draws_no_random_numbers(record):
    """The trainer's stream of random numbers is what it would be without."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    recording = record()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    torch.manual_seed(0)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    recording.recorder.finished(recording.task)
    assert torch.equal(torch.rand(3), expected)


def test_events_are_documented_json():
    """Of a kind that `KINDS` describes, numbered without a gap, and plain JSON without NaN or infinity."""
    events = train(loading.load("accumulated")[0], overflowing(accumulation=2, size=4))
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert {event["event"] for event in events} <= set(KINDS)
    for event in events:
        assert set(event) - {"event", "rank", "seq"} == _documented_fields(event["event"])


def _documented_fields(kind):
    text = KINDS[kind]
    return set(text[text.index("{") + 1 : text.index("}")].replace(" ", "").split(","))
