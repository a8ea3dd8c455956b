"""The parameters that optimizers hold, each with its number, and the names that modules give them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from conformance.trace.state.numbers import Stamp
from conformance.trace.state.optimizers import Part
from conformance.watch import records
from conformance.watch.sizes import UNREAD, WHOLE

WHOLE_AT_FIRST = 16
"""Windows of a parameter in which all of it is looked at; then a sample in each that is its turn, one after another."""

AT_ONCE = 16
"""Of an optimizer's parameters, so many or up to twice as many are read in a window, and the others in the next ones:
what a watch costs does not grow with their number."""


@dataclass(slots=True, eq=False)
class Known:
    """A parameter.

    pieces: the ranges that its dimension `cut` is split into, one for each of the ranks that hold it; () if it is
    whole. piece: which of them is on this rank. is_flat: they are ranges of elements instead, and an optimizer holds
    this rank's in a flat tensor. handle, first: of our hooks, the last one and, where the script has hooks of its own,
    the first one. sample: what is looked at in this window. windows: how many that are looked at were before. steps:
    how many there were at all. beside: how many parameters its optimizer has. is_in_window: whether a backward pass has
    come since the last step. looked_at: at which pass `.grad` was read for what earlier steps have left, until a pass
    adds to it. used: the identity and the version of the gradient that the last step used. left: the first elements
    that this step left of the parameter, or None. since: its version when it was first seen to require a gradient.
    """

    number: int
    reference: Callable[[], torch.Tensor | None]
    is_cut_otherwise: bool
    pieces: tuple[tuple[int, int], ...] = ()
    piece: int = 0
    cut: int = 0
    is_flat: bool = False
    is_part: bool = False
    handle: Any = None
    first: Any = None
    sample: int = WHOLE
    windows: int = 0
    steps: int = 0
    beside: int = 1
    is_in_window: bool = False
    looked_at: int | None = None
    used: Stamp | None = None
    left: torch.Tensor | None = None
    since: int | None = None

    @classmethod
    def of(cls, number: int, parameter: torch.Tensor) -> Known:
        layout = _layout(parameter)
        return cls(number, weakref.ref(parameter), layout is None, *(layout or ((), 0, 0)))

    def split(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a gradient for all ranks that hold the parameter."""
        if self.is_flat:
            gradient = gradient.flatten()
        return [gradient.narrow(self.cut, begin, end - begin) for begin, end in self.pieces]

    @property
    def is_read(self) -> bool:
        """Whether this window is its turn."""
        return self.sample != UNREAD

    def advance(self) -> None:
        """A window begins."""
        self.is_in_window, self.sample = True, sample_of(self.windows)
        turns = self.beside // AT_ONCE
        if self.sample != WHOLE and turns > 1:
            # Each round begins one later: what has a gradient in every other window has its turn, too.
            turn = self.number + self.windows + self.windows // turns
            self.sample = UNREAD if turn % turns else self.sample // turns

    def step(self, gradient: torch.Tensor | None, *, is_looked_at: bool) -> None:
        """A window ends, in which `gradient` was used."""
        self.is_in_window = False
        self.windows += is_looked_at
        self.steps += 1
        self.used = None if gradient is None else Stamp(gradient)

    def has_used(self, gradient: torch.Tensor) -> bool:
        """Whether this is what the last step used, as it was then."""
        return self.used == Stamp(gradient)


class Slice:
    """What a flat tensor has of a parameter, as an optimizer steps it."""

    requires_grad, is_sparse = True, False

    def __init__(self, flat: torch.Tensor, start: int, length: int) -> None:
        gradient = flat.grad
        self.data = flat.data[start : start + length]
        self.grad = None if gradient is None else gradient[start : start + length]


def sample_of(window: int) -> int:
    """Which sample of a large parameter is looked at in a window."""
    return WHOLE if window < WHOLE_AT_FIRST else window - WHOLE_AT_FIRST


class Parameters:
    """All parameters that an optimizer of this process was given, in order of first sight.

    note: is called with the record of each. roots: modules that know their names.
    """

    def __init__(self, note: Callable[[records.Record], None], roots: Iterable[torch.nn.Module]) -> None:
        self._note, self._roots = note, roots
        self._known: dict[int, Known] = {}
        self._in_flat = WeakIdKeyDictionary()
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
        """Those of the tensors that are known."""
        return [(known, tensor) for tensor in tensors if (known := self.find(tensor)) is not None]

    def version(self, tensor: torch.Tensor) -> int:
        """Grows with each change in memory, once it has required a gradient. What never does, such as a momentum
        encoder, may move in each forward; what is frozen and unfrozen in turn is trained."""
        known = self.find(tensor)
        if known is None:
            return tensor._version
        if known.since is None and tensor.requires_grad:
            known.since = tensor._version
        return 0 if known.since is None else tensor._version - known.since

    def numbers(self, tensors: Iterable[Any]) -> list[int]:
        return [known.number for known, _ in self.among(tensors)]

    def of(self, parameter: torch.Tensor) -> Known:
        known = self.find(parameter)
        if known is None:
            known = self._known[id(parameter)] = Known.of(self._count, parameter)
            # Another one may get its identity later.
            weakref.finalize(parameter, self._forget, id(parameter), known).atexit = False
            self._count += 1
            self._describe(known, parameter)
        return known

    def _describe(self, known: Known, parameter: Any) -> None:
        # DeepSpeed takes the values away meanwhile.
        shape = list(getattr(parameter, "ds_shape", parameter.shape))
        shards = 0 if known.is_cut_otherwise else max(1, len(known.pieces))
        name = self.name(parameter)
        dtype = str(parameter.dtype)[6:]
        self._note(records.Parameter(known.number, shape, dtype, shards, name, known.piece, known.is_part))

    def take_part(self, known: Known) -> None:
        """A backward pass gives this rank the whole gradient of its piece, as in tensor parallelism."""
        known.pieces, known.is_part = (), True
        if (parameter := known.reference()) is not None:
            self._describe(known, parameter)

    def divide(self, parameter: torch.Tensor, part: Part, pieces: Sequence[tuple[int, int]], piece: int) -> None:
        """Of a parameter, each rank steps one of these pieces, and this one has it in a flat tensor."""
        known = self.of(parameter)
        known.pieces, known.piece, known.is_flat = tuple(pieces), piece, True
        self._describe(known, parameter)
        self._in_flat.setdefault(part.flat, []).append((known, part.start, part.length))

    def held(self, optimizer: torch.optim.Optimizer) -> list[tuple[Known, Any]]:
        """What an optimizer steps: parameters, or what flat tensors have of them."""
        tensors = [one for group in optimizer.param_groups for one in group["params"]]
        # To look one up takes a while, and most scripts have none.
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
        """Note the names of those that were known before their model was."""
        named = root.named_parameters()
        names = {str(known.number): plain(name) for name, one in named if (known := self.find(one)) is not None}
        if names:
            self._note(records.Named(names))


def plain(name: str) -> str:
    """Without what wrappers put into it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")


def coarsest(dtypes: Iterable[torch.dtype]) -> str:
    """The one with the fewest digits: the names happen to sort so."""
    return min((str(dtype)[6:] for dtype in {*dtypes}), default="float32")


def _layout(parameter: torch.Tensor) -> tuple[tuple[tuple[int, int], ...], int, int] | None:
    """The range of each shard, the number of this rank's, and the dimension that is cut; None for another layout.

    Only one dimension of tensors that is cut over one dimension of ranks is followed, beside whole copies.
    """
    placements = getattr(parameter, "placements", None)
    if placements is None:
        # FSDP before FSDP2 keeps flat parameters, or views of its shard of them.
        is_flat = any(hasattr(parameter, mark) for mark in ("_is_flat_param", "_fsdp_flattened"))
        return None if is_flat else ((), 0, 0)
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


def names_of(parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """By the identity of a parameter: the class of the outermost module that holds it, and its name in that. What is in
    several has the first of these names, on all ranks.

    Looks at all objects of the process, which takes a while.
    """
    wanted = {id(one) for one in parameters}
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module) and "_modules" in vars(one)]
    inner = {id(child) for module in modules for child in vars(module)["_modules"].values()}
    found: dict[int, str] = {}
    for module in modules:
        for name, one in module.named_parameters() if id(module) not in inner else ():
            if id(one) in wanted:
                full = f"{type(module).__name__}.{name}"
                found[id(one)] = min(full, found.get(id(one), full))
    return found
