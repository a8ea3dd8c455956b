"""Casts that lose bits, and where."""

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .places import here

THIRDS = torch.full((3,), 1 / 3)
HALVES = torch.full((3,), 0.5)


@pytest.mark.parametrize(
    ("lose", "dtype"),
    [
        (lambda: THIRDS.half(), "float16"),
        (lambda: THIRDS.to(torch.bfloat16), "bfloat16"),
        (lambda: THIRDS.type(torch.float16), "float16"),
        (lambda: THIRDS.double().div(3).float(), "float32"),
        (lambda: HALVES.bfloat16().copy_(THIRDS), "bfloat16"),
        (lambda: HALVES.bfloat16().__iadd__(THIRDS), "bfloat16"),
        # The sum needs 9 bits, its terms do not.
        (lambda: torch.full((3,), 256.0).bfloat16().add_(HALVES, alpha=2), "bfloat16"),
    ],
)
def test_bits_are_lost(record, lose, dtype):
    recording = record()
    lose()
    [event] = recording.of_kind("narrowed")
    assert (event["dtype"], event["elements"], event["where"][0]) == (dtype, 3, here()[0])


@pytest.mark.parametrize(
    "keep",
    [
        lambda: HALVES.half(),
        lambda: THIRDS.double(),
        lambda: HALVES.bfloat16().copy_(HALVES),
        lambda: torch.zeros(3).add_(THIRDS),
        lambda: torch.full((1,), torch.nan).half(),
        lambda: torch.arange(3).to(torch.int8),
        lambda: torch.empty(3, device="meta").half(),
    ],
)
def test_no_bits_are_lost(record, keep):
    recording = record()
    keep()
    assert not recording.of_kind("narrowed")


@pytest.mark.usefixtures("group")
def test_a_hook_of_torch_is_where_it_was_registered(record):
    recording = record()
    model = DistributedDataParallel(recording.task.model())
    model.register_comm_hook(None, fp16_compress_hook)
    place = here(-1)
    (model(recording.task.model().weight.detach()).sum() / 3).backward()
    assert [event["where"] for event in recording.of_kind("narrowed")] == [place]


def test_methods_of_tensors_are_put_back(record):
    assert "half" not in vars(torch.Tensor)
    recording = record()
    assert "half" in vars(torch.Tensor)
    recording.recorder.__exit__(None, None, None)
    assert "half" not in vars(torch.Tensor)
    recording.recorder.__enter__()
