"""Collectives of torch.distributed, seen at c10d's operators: DDP's all-reduces, issued in C++, pass there
too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.distributed_c10d import _world

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

PAYLOADS: dict[str, int] = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "broadcast_": 0,
    "reduce_": 0,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "gather_": 1,
    "scatter_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "barrier": 0,
}
"""The operators that are watched, with the position of the argument that holds what a rank puts in."""


@contextmanager
def observing_c10d(recorder: Recorder) -> Iterator[None]:
    """Have each c10d collective noted before it is issued.

    The operators get a kernel above the backends' own, at the autograd keys that every tensor made outside of
    inference mode carries.
    """
    library = torch.library.Library("c10d", "IMPL")
    try:
        for name, position in PAYLOADS.items():
            kernel = _noting(recorder, name, position)
            for key in ("AutogradCPU", "AutogradCUDA"):
                library.impl(name, kernel, key)
        yield
    finally:
        library._destroy()


def _noting(recorder: Recorder, name: str, position: int) -> Callable[..., Any]:
    operator = getattr(torch.ops.c10d, name).default

    def kernel(*args: Any) -> Any:
        size = 0 if name == "barrier" else payload(args[position])
        recorder.note_collective(name, size, "c10d")
        recorder.keep_alive(_world.pg_map)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return kernel


def payload(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(payload(tensor) for tensor in tensors)
