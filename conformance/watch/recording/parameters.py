"""Numbers, names and layouts of the parameters of optimizers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from conformance.trace.state.identities import Stamp
from conformance.watch import records
from conformance.watch.recording import own_rank
from conformance.watch.sizes import UNREAD, WHOLE

WHOLE_AT_FIRST = 16
"""Windows in which a parameter is read as a whole. After that, one sample in each window that is its turn."""

_FLAT = "_is_flat_param"
"""The attribute of FSDP1's flat parameters."""

IN_FLAT = "_conformance_in_flat"
"""The attribute of a parameter that FSDP1 has in a flat one: its first element and its length there, the number of
elements of a shard, the number of ranks, and its whole shape."""

AT_ONCE = 16
"""Parameters of an optimizer to read in a window, or up to twice as many; the rest in later windows. So the cost of a
watch does not grow with their number."""


@dataclass(slots=True, eq=False)
class Known:
    """A parameter.

    pieces: the ranges of its dimension `cut`, one for each rank with a shard; () if it is whole. piece: the shard of
    this rank. is_copied: an optimizer steps a copy, such as a master weight. is_flat: so it does, of this rank's piece,
    and pieces are ranges of elements. is_gathered: it holds all pieces in a backward pass, and then its own again, as a
    flat parameter of FSDP1. handle, first: of our last hook, and of our first one if the script has hooks. sample: to
    read in this window. windows: the number of watched windows before. steps: the number of all steps. among: the
    number of parameters of its optimizer. is_in_window: a backward pass came since the last step. looked_at: the pass
    at which an old `.grad` was read, until a pass adds to it. used: identity and version of the gradient that the last
    step used. left: the parameter's first elements after this step, or None. since: its version when it was first seen
    to require a gradient.
    """

    number: int
    reference: Callable[[], torch.Tensor | None]
    is_cut_otherwise: bool
    pieces: tuple[tuple[int, int], ...] = ()
    piece: int = 0
    cut: int = 0
    is_copied: bool = False
    is_flat: bool = False
    is_part: bool = False
    is_gathered: bool = False
    handle: Any = None
    first: Any = None
    sample: int = WHOLE
    windows: int = 0
    steps: int = 0
    among: int = 1
    is_in_window: bool = False
    looked_at: int | None = None
    used: Stamp | None = None
    left: torch.Tensor | None = None
    since: int | None = None

    @classmethod
    def of(cls, number: int, parameter: torch.Tensor) -> Known:
        layout = _layout(parameter)
        found = cls(number, weakref.ref(parameter), layout is None, *(layout or ((), 0, 0)))
        found.is_gathered = bool(found.pieces) and any(hasattr(parameter, mark) for mark in (_FLAT, IN_FLAT))
        return found

    def split(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a gradient for all ranks with a shard."""
        if self.is_flat:
            gradient = gradient.flatten()
        if self.is_gathered and (missing := self.pieces[-1][1] - len(gradient)) > 0:
            # FSDP1 fills the last shards up.
            gradient = torch.nn.functional.pad(gradient, (0, missing))
        return [gradient.narrow(self.cut, begin, end - begin) for begin, end in self.pieces]

    @property
    def is_empty(self) -> bool:
        """Whether this rank has no element of it."""
        return self.is_gathered and self.pieces[self.piece][0] == self.pieces[self.piece][1]

    @property
    def is_read(self) -> bool:
        """Whether it is read in this window."""
        return self.sample != UNREAD

    def advance(self) -> None:
        """Begins a window."""
        self.is_in_window, self.sample = True, sample_of(self.windows)
        turns = self.among // AT_ONCE
        if self.sample != WHOLE and turns > 1:
            # Shifts by one each round, so parameters with a gradient in every other window also get a turn.
            turn = self.number + self.windows + self.windows // turns
            self.sample = UNREAD if turn % turns else self.sample // turns

    def step(self, gradient: torch.Tensor | None, *, is_looked_at: bool) -> None:
        """Ends a window whose step used this gradient."""
        self.is_in_window = False
        self.windows += is_looked_at
        self.steps += 1
        gradient = self._kept(gradient)
        self.used = None if gradient is None else Stamp(gradient)

    def has_used(self, gradient: torch.Tensor) -> bool:
        """Whether the last step used this gradient, unchanged since."""
        kept = self._kept(gradient)
        return kept is not None and self.used == Stamp(kept)

    def _kept(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient to which the next backward pass adds, if the step used this one."""
        parameter = self.reference() if self.is_copied else None
        return gradient if parameter is None else parameter.grad


class Slice:
    """The part of a parameter in a flat tensor that an optimizer steps."""

    requires_grad, is_sparse = True, False

    def __init__(self, flat: torch.Tensor, start: int, length: int) -> None:
        gradient = flat.grad
        self.data = flat.data.reshape(-1)[start : start + length]
        self.grad = None if gradient is None else gradient.reshape(-1)[start : start + length]


def sample_of(window: int) -> int:
    """The sample of a large parameter to read in a window."""
    return WHOLE if window < WHOLE_AT_FIRST else window - WHOLE_AT_FIRST


class Parameters:
    """All parameters of optimizers in this process, in order of first sight.

    note: called with the record of each. roots: modules with their names.
    """

    def __init__(self, note: Callable[[records.Record], None], roots: Iterable[torch.nn.Module]) -> None:
        self._note, self._roots = note, roots
        self._known: dict[int, Known] = {}
        self._in_flat, self._instead = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._count = 0

    @property
    def any(self) -> bool:
        return self._count > 0

    def all(self) -> list[tuple[Known, torch.Tensor]]:
        found = [(known, known.reference()) for known in self._known.values()]
        return [(known, parameter) for known, parameter in found if parameter is not None]

    def find(self, tensor: Any) -> Known | None:
        known = self._known.get(id(tensor))
        return known if known is not None and known.reference() is tensor else None

    def among(self, tensors: Iterable[Any]) -> list[tuple[Known, Any]]:
        """The tensors that are known parameters."""
        return [(known, tensor) for tensor in tensors if (known := self.find(tensor)) is not None]

    def version(self, tensor: torch.Tensor) -> int:
        """A count that grows with each change in memory after the tensor first required a gradient. Others, such as a
        momentum encoder, may change in each forward pass."""
        known = self.find(tensor)
        if known is None:
            return tensor._version
        if known.since is None and tensor.requires_grad:
            known.since = tensor._version
        return 0 if known.since is None else tensor._version - known.since

    def numbers(self, tensors: Iterable[Any]) -> list[int]:
        """The numbers of the known parameters among tensors, and of those whose elements they have."""
        if not self._in_flat:
            return [known.number for known, _ in self.among(tensors)]
        found = [[one for one, *_ in self._in_flat.get(tensor, ())] or [self.find(tensor)] for tensor in tensors]
        return [known.number for of_tensor in found for known in of_tensor if known is not None]

    def of(self, parameter: torch.Tensor) -> Known:
        known = self.find(parameter)
        if known is None:
            known = self._known[id(parameter)] = Known.of(self._count, parameter)
            # Another tensor may get the same `id` later.
            weakref.finalize(parameter, self._forget, id(parameter), known).atexit = False
            self._count += 1
            self._describe(known, parameter)
        return known

    def _describe(self, known: Known, parameter: Any) -> None:
        # DeepSpeed frees the values in between.
        shape = list(getattr(parameter, "ds_shape", parameter.shape))
        if hasattr(parameter, IN_FLAT):
            *_, shape = getattr(parameter, IN_FLAT)
        shards = 0 if known.is_cut_otherwise else max(1, len(known.pieces))
        name = self.name(parameter)
        dtype = str(parameter.dtype)[6:]
        self._note(records.Parameter(known.number, shape, dtype, shards, name, known.piece, known.is_part))

    def take_part(self, known: Known) -> None:
        """Notes that backward passes give this rank the whole gradient of its piece, as in tensor parallelism."""
        known.pieces, known.is_part = (), True
        if (parameter := known.reference()) is not None:
            self._describe(known, parameter)

    def follow(
        self,
        parameter: torch.Tensor,
        master: torch.Tensor,
        start: int,
        length: int,
        pieces: Sequence[tuple[int, int]] = (),
        piece: int = 0,
    ) -> None:
        """Notes that an optimizer steps `length` elements of `master` from `start` on instead of a parameter, or of the
        piece on this rank. pieces: the elements of each rank; () if each has all."""
        known = self.of(parameter)
        known.is_copied, known.is_flat = True, bool(pieces)
        known.pieces, known.piece = tuple(pieces), piece
        self._describe(known, parameter)
        self._in_flat.setdefault(master, []).append((known, start, length))
        if (own := self._known.pop(id(master), None)) is not None:
            self._instead[master] = own

    def is_followed(self, master: torch.Tensor) -> bool:
        """Whether it has the elements of other parameters."""
        return master in self._in_flat

    def leave(self, masters: Iterable[torch.Tensor]) -> bool:
        """Follows no parameters into these any longer. Returns whether it did."""
        left = [master for master in masters if master in self._instead]
        for master in left:
            for known, *_ in self._in_flat.pop(master):
                self._known = {key: one for key, one in self._known.items() if one is not known}
            self._known[id(master)] = self._instead.pop(master)
        return bool(left)

    def held(self, optimizer: torch.optim.Optimizer) -> list[tuple[Known, Any]]:
        """The parameters that an optimizer steps, or their parts in flat tensors."""
        tensors = [one for group in optimizer.param_groups for one in group["params"]]
        # Lookups take time, and most scripts have no flat tensors.
        if not self._in_flat:
            return [(self.of(tensor), tensor) for tensor in tensors]
        found: list[tuple[Known, Any]] = []
        for tensor in tensors:
            if tensor in self._in_flat:
                found += [(known, Slice(tensor, *place)) for known, *place in self._in_flat[tensor]]
            else:
                found.append((self.of(tensor), tensor))
        return found

    def _forget(self, identity: int, known: Known) -> None:
        if self._known.get(identity) is known:
            del self._known[identity]

    def name(self, parameter: torch.Tensor) -> str | None:
        named = (pair for root in list(self._roots) for pair in root.named_parameters())
        return next((plain(name) for name, one in named if one is parameter), None)

    def note_names(self, root: torch.nn.Module) -> None:
        """Notes the names of parameters that were known before their model."""
        named = root.named_parameters()
        names = {str(known.number): plain(name) for name, one in named if (known := self.find(one)) is not None}
        if names:
            self._note(records.Named(names))


def plain(name: str) -> str:
    """A name without the parts that wrappers add."""
    return name.removeprefix("module.").replace("_orig_mod.", "")


def coarsest(dtypes: Iterable[torch.dtype]) -> str:
    """The dtype with the fewest digits: their names happen to sort this way."""
    return min((str(dtype)[6:] for dtype in {*dtypes}), default="float32")


def _layout(parameter: torch.Tensor) -> tuple[tuple[tuple[int, int], ...], int, int] | None:
    """The range of each shard, the number of this rank's shard, and the sharded dimension; None for other layouts.

    Supports replicas, and shards of one tensor dimension over one mesh dimension.
    """
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return _flat_layout(parameter)
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]  # a DTensor's
    cut = [number for number, placement in enumerate(placements) if not placement.is_replicate()]
    if not cut:
        return (), 0, 0
    if len(cut) > 1 or not placements[cut[0]].is_shard():
        return None
    dimension: int = placements[cut[0]].dim
    length, ranks = parameter.shape[dimension], mesh.size(cut[0])
    size = -(-length // ranks)
    pieces = tuple((min(length, rank * size), min(length, (rank + 1) * size)) for rank in range(ranks))
    return pieces, mesh.get_local_rank(cut[0]), dimension


def _flat_layout(parameter: Any) -> tuple[tuple[tuple[int, int], ...], int, int] | None:
    """The same for a parameter that is no DTensor: FSDP1 has flat parameters, or views of its shard of them."""
    if not hasattr(parameter, "_fsdp_flattened"):
        return (), 0, 0
    if hasattr(parameter, _FLAT):
        total, size = parameter._unpadded_unsharded_size.numel(), parameter._sharded_size.numel()
        if size == total:
            return (), 0, 0
        begin, length, ranks = 0, size * own_rank.world(), -(-total // size)
    elif hasattr(parameter, IN_FLAT):
        begin, length, size, ranks, _ = getattr(parameter, IN_FLAT)
    else:
        return None
    if ranks != own_rank.world():
        return None
    cuts = [min(max(rank * size - begin, 0), length) for rank in range(ranks + 1)]
    return tuple(pairwise(cuts)), torch.distributed.get_rank(), 0


def is_partial(gradient: torch.Tensor) -> bool:
    """Whether it is a DTensor with a summand on each rank, as that of a norm with sequence parallelism."""
    placements: Any = getattr(gradient, "placements", ())
    is_sum = len(placements) == 1 and placements[0].is_partial() and placements[0].reduce_op == "sum"
    return is_sum and gradient.device_mesh.size() == torch.distributed.get_world_size()  # type: ignore[attr-defined]


def outermost() -> list[torch.nn.Module]:
    """The modules of the process that are in no other one. Slow: inspects all objects."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module) and "_modules" in vars(one)]
    inner = {id(child) for module in modules for child in vars(module)["_modules"].values()}
    return [module for module in modules if id(module) not in inner]


def names_of(parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """By `id` of a parameter: the class of its outermost module, and its name in that. If several have it, the first
    name in alphabetical order, so all ranks have the same.

    Slow: inspects all objects of the process.
    """
    wanted = {id(one) for one in parameters}
    found: dict[int, str] = {}
    for module in outermost():
        for name, one in module.named_parameters():
            if id(one) in wanted:
                full = f"{type(module).__name__}.{name}"
                found[id(one)] = min(full, found.get(id(one), full))
    return found
