"""The recorder as a whole: it changes nothing and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import horovod.torch
import pytest
import torch
from torch.nn.modules import module as torch_modules
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizers
from torch.optim.lr_scheduler import LRScheduler

from conformance.adapter import loading
from conformance.runner.front.client import ForkServer
from conformance.trace.events import check_all
from conformance.trace.recorder import Recorder
from conformance.trace.seams.patching import with_subclasses

from ..trainers.tasks import make_spec, overflowing, scaler, train

TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"

PATHS = {
    "single": {"backend": "single", "accumulation": 8, "size": 1},
    "batched": {"backend": "single", "size": 8},
    "accumulated": {"backend": "single", "accumulation": 2, "size": 4},
    "ddp": {"backend": "ddp", "accumulation": 2, "size": 2, "world_size": 2},
    "horovod": {"backend": "horovod", "accumulation": 2, "size": 2, "world_size": 2},
    "fsdp2": {"backend": "fsdp2", "accumulation": 2, "size": 2, "world_size": 2},
    "zero_redundancy": {"backend": "zero-redundancy", "accumulation": 2, "size": 2, "world_size": 2},
    "horovod_plain": {"backend": "horovod", "accumulation": 2, "size": 2, "world_size": 2},
    "parameter_server": {"backend": "parameter-server", "accumulation": 2, "size": 2, "world_size": 2},
    "ring": {"backend": "ring", "size": 2, "world_size": 4},
    "ring_gather": {"backend": "ring-gather", "accumulation": 2, "size": 2, "world_size": 2},
}


def state_of_torch():
    """Everything that the recorder changes while it is on."""
    owners = [
        *with_subclasses(torch.amp.GradScaler),
        *with_subclasses(LRScheduler),
        *with_subclasses(torch.autocast),
        *(torch.optim.Optimizer, torch.nn.Module, torch.nn.Linear, DistributedDataParallel),
        *(torch.autograd, torch.autograd.graph, torch.distributed, clip_grad, torch.nn.utils),
        *(horovod.torch, horovod.torch.mpi_ops, horovod.torch.mpi_ops.mpi_lib, horovod.torch.optimizer),
        horovod.torch.optimizer._DistributedOptimizer,
    ]
    return {
        **{f"{owner!r}": dict(vars(owner)) for owner in owners},
        "clipping": [
            [cell.cell_contents for cell in vars(clip_grad)[name].__closure__]
            for name in ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_", "_get_total_norm")
        ],
        "finders": list(sys.meta_path),
        "optimizer hooks": [
            dict(torch_optimizers._global_optimizer_pre_hooks),
            dict(torch_optimizers._global_optimizer_post_hooks),
        ],
        "module hooks": {key: dict(value) for key, value in vars(torch_modules).items() if _is_hooks(key, value)},
        "library": set(torch.library._impls),
        "kernels": [
            torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key)
            for name in ("allreduce_", "barrier")
            for key in ("AutogradCPU", "AutogradCUDA", "BackendSelect")
        ],
    }


def _is_hooks(key, value):
    return key.startswith("_global") and isinstance(value, dict)


def test_nothing_stays(record):
    """Replaced objects are put back, with the same identity."""
    before = state_of_torch()
    recording = record()
    during = state_of_torch()
    recording.recorder.__exit__(None, None, None)
    assert {key for key in before if before[key] != during[key]} >= {
        *map(repr, (torch.amp.GradScaler, LRScheduler, torch.autocast, torch.optim.Optimizer, torch.nn.Module)),
        *map(repr, (DistributedDataParallel, torch.autograd, horovod.torch.mpi_ops)),
        *("clipping", "finders", "optimizer hooks", "library", "kernels"),
    }
    assert state_of_torch() == before


def test_nothing_stays_after_an_error():
    before = state_of_torch()
    with pytest.raises(MemoryError), Recorder(print, make_spec(), 0):
        raise MemoryError
    assert state_of_torch() == before


@pytest.fixture(scope="module")
def servers():
    """The servers of one training with and without the recorder, for each backend."""
    with ExitStack() as stack:
        yield {
            (function, backend): stack.enter_context(ForkServer(f"{TRAINERS}:{function}", backend=backend))
            for function in ("recorded", "unrecorded")
            for backend in {path["backend"] for path in PATHS.values()}
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
    """With real data, where every rounding counts, in all ranks of every path."""
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
    """The trainer's random numbers are the same as without a recorder."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    recording = record()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    torch.manual_seed(0)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    recording.recorder.finished()
    assert torch.equal(torch.rand(3), expected)


def test_events_are_documented_json():
    """Known kinds, numbers without gaps, and plain JSON without NaN or infinity."""
    clip = {"kind": "norm", "threshold": 1.0}
    events = train(loading.load("accumulated")[0], {**overflowing(accumulation=2, size=4), "clip": clip})
    assert {event["event"] for event in events} >= {"clip", "unscale", "skip", "schedule", "backward_end"}
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    assert [event["seq"] for event in events] == list(range(len(events)))
    check_all(events, 0)
    assert all([*event][: len(HEAD)] == HEAD for event in events)
    times = [event["time"] for event in events]
    assert times == sorted(times)


HEAD = ["event", "rank", "seq", "time", "window", "micro_batch", "where"]


def test_a_loop_without_a_task():
    """The recorder can watch any model; it does not read values of a large one."""
    events = []
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    with Recorder(events.append) as recorder:
        recorder.watch(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    step = ["zero_grad", "forward", "backward_begin", "backward_end", "clip", "step"]
    kinds = [event["event"] for event in events if event["event"] not in ("start", "topology")]
    assert kinds == ["model", "optimizer", *step, *step]
    assert events[0]["shapes"] == [[64, 64], [64], [1, 64], [1]]
    for event in events:
        assert event["where"][2] == "test_a_loop_without_a_task"
        assert event.get("weights") is None
        assert event.get("gradients") in (None, "none")
    assert next(event["rows"] for event in events if event["event"] == "forward") == []


def test_an_average_of_the_model(with_model):
    """`finished` reads the parameters stepped last, not those of an average."""
    recording, model = with_model()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = recording.task.optimizer(model.parameters())
    for batch in recording.task.dataloader():
        optimizer.zero_grad()
        recording.task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
        average.update_parameters(model)
        average(batch.inputs)
    recording.recorder.finished()
    assert recording.events[-1]["weights"] == recording.of_kind("step")[-1]["weights"]
    assert recording.of_kind("gradient_change") == []
