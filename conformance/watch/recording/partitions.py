"""Records parameters that are sharded by hand or by DeepSpeed's ZeRO."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import clipping, optimizer_steps
from conformance.trace.state.deepspeed import WRAPPERS, cuts, stepped
from conformance.watch import records
from conformance.watch.recording import own_rank
from conformance.watch.recording.adjusting import noted
from conformance.watch.recording.losses import nodes
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording

_MOST_NODES = 200_000
_LOCAL, _GATHERED = "_ToTorchTensorBackward", "RedistributeBackward"


@contextmanager
def gathered(recording: Recording, see: Callable[[Known, Any], None], root: Any) -> Iterator[None]:
    """Context of a backward pass from this node. Walks its graph only if optimizers have shards over all ranks that are
    not FSDP2's. see: takes the whole gradient of a parameter."""

    def take(known: Known, gradients: Sequence[Any]) -> None:
        see(known, gradients[0])

    held = recording.parameters.all()
    shards = {id(one): known for known, one in held if known.pieces and _is_by_hand(known, one)}
    found = [(node, shards.get(id(shard))) for node, shard in _wholes(root)] if shards else []
    handles = [node.register_prehook(harmless(partial(take, known))) for node, known in found if known is not None]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_by_hand(known: Known, parameter: Any) -> bool:
    is_of_fsdp = known.is_flat or known.is_gathered or hasattr(parameter, "_conformance_whole")
    return not is_of_fsdp and parameter.device_mesh.ndim == 1 and len(known.pieces) == own_rank.world()


def _wholes(root: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes whose output is the whole tensor of a shard, each with the shard."""
    for node in nodes(root, _MOST_NODES):
        following = [one for one, _ in node.next_functions if one is not None]
        if node.name() == _LOCAL and following and following[0].name() == _GATHERED:
            shard = getattr(following[0].next_functions[0][0], "variable", None)
            if shard is not None:
                yield node, shard


def observe(recording: Recording) -> Seams:
    """Follows the parameters of a model into DeepSpeed's flat tensors, and notes `Clipped` before each step on these.
    Without ZeRO, DeepSpeed's engine clips with its own function."""
    wrappers: weakref.WeakSet[Any] = weakref.WeakSet()

    def construct(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        parts = [(parameter, part, cuts(wrapper, parameter, part)) for parameter, part in stepped(wrapper)]
        _, rank, world = own_rank.of_process()
        if any(len(pieces) != world or pieces[rank][1] - pieces[rank][0] != part.length for _, part, pieces in parts):
            raise ValueError("unsupported partition of the parameters over ranks")
        for parameter, part, pieces in parts:
            recording.parameters.follow(parameter, part.flat, part.start, part.length, pieces, rank)
        wrappers.add(wrapper)

    def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        wrapper = next((one for one in wrappers if getattr(one, "optimizer", None) is optimizer), None)
        limit, norm = getattr(wrapper, "clip_grad", 0.0), getattr(wrapper, "_global_grad_norm", None)
        if limit and norm is not None:
            held = [known.number for known, _ in recording.parameters.held(optimizer)]
            given, site, within = len(held), recording.site(), recording.within
            recording.note(records.Clipped("norm", held, float(limit), float(norm), given, site, within=within))

    def classes(module: ModuleType) -> Seams:
        yield replaced(getattr(module, WRAPPERS[module.__name__]), "__init__", construct)

    def engine(module: ModuleType) -> Seams:
        around = clipping(recording, partial(noted, recording), module.clip_grad_norm_, "norm")
        yield replaced(module, "clip_grad_norm_", around)

    for name in WRAPPERS:
        yield when_imported(name, classes)
    yield when_imported("deepspeed.runtime.engine", engine)
    yield from optimizer_steps(clip)
