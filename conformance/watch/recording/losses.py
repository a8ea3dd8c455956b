"""Reads the graph of a loss: factors, divisors, targets, and whether it went backward before or is cut off."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from math import prod
from operator import add, and_
from typing import Any, TypeAlias

import torch

from conformance.trace.state.graphs import Graphs, saved
from conformance.watch.recording.holdings import is_plain
from conformance.watch.records import ENTROPIES

_MOST_NODES, _MOST_TERMS = 12, 64
_MOST_OF_ALL = 200_000
_NONE, _MEAN = 0, 1
"""torch's numbers for `reduction="none"` and `reduction="mean"`."""

_ANY = "MeanBackward0"
_DIVISION = "DivBackward0"
_PRODUCTS = (_DIVISION, "MulBackward0")
_ADDITION = "AddBackward0"
_OF_ANY = (_ANY, "SumBackward0", "SumBackward1")
_SMOOTHED = "MulBackward1"
"""A product with a number inside torch; a product in Python has another name."""
_ELEMENTWISE = (
    "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
    "HuberLossBackward0",
    "MseLossBackward0",
    "SmoothL1LossBackward0",
)
_SUMS = (*_OF_ANY, _ADDITION, "CatBackward0", "MeanBackward1", "StackBackward0")
_OF_DDP = "_DDPSinkBackward"
"""DDP's node around all outputs of a model, if it looks for unused parameters."""
_L1 = ["AbsBackward0", "SubBackward0"]
"""The nodes below the mean in torch's `l1_loss`, which is no single node."""
_THROUGH = ("ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0", "CloneBackward0")
_PASSED_ON = (*_THROUGH, _OF_DDP)
_OF_SOME = ("MeanBackward1", "SumBackward1", "IndexBackward0")
"""Nodes that make fewer elements of several or some."""
_MASKS = {"MulBackward0": ("other", "self"), "MaskedFillBackward0": ("mask",), "WhereBackward0": ("condition",)}

_Join: TypeAlias = Callable[[Counter[float], Counter[float]], Counter[float]]


@dataclass
class Loss:
    """The fields of `records.Backward` from the graph of its loss."""

    factors: list[float] = field(default_factory=list)
    divisors: list[float] = field(default_factory=list)
    targets: int | None = None
    summed: int = 0
    of_any: bool = False
    terms: int = 0
    added: int = 0
    is_hidden: bool = False
    of_terms: list[float] = field(default_factory=list)
    ignored: int = 0
    made_by: str = ""
    weighs: bool = False

    def divide(self, divisor: float) -> None:
        self.factors.append(1 / divisor)
        self.divisors.append(divisor)

    def multiply(self, node: Any, factor: float) -> None:
        """Adds the factor of a product or quotient."""
        self.factors.append(factor)
        if node.name() == _DIVISION:
            self.divisors.append(1 / factor)


def of(root: Any, times: float | None = 1.0) -> Loss:
    """Reads a graph. root: the node where the backward pass begins. times: the factor from `gradient=`; None if that is
    not a single number."""
    if times is None:
        return Loss(is_hidden=True)
    loss = Loss()
    if times != 1.0:
        loss.factors.append(times)
        loss.divisors += [1 / times] if times else []
    # A graph that an earlier backward pass freed raises an error here, and again in the script.
    with suppress(RuntimeError):
        for node, factor in _chain(root):
            if factor is not None:
                loss.multiply(node, factor)
            elif node.name() not in _PASSED_ON:
                loss.made_by = node.name()
                _read(loss, _unsmoothed(node))
    return loss


def nodes(root: Any, most: int) -> Iterator[Any]:
    """The nodes of a graph that are nearest to its root, each once."""
    waiting, known = deque([root] if root is not None else []), {root}
    while waiting:
        node = waiting.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in known and len(known) < most:
                known.add(following)
                waiting.append(following)


def leaves(root: Any) -> list[torch.Tensor]:
    """The tensors that get gradients in a backward pass from this node."""
    variables = [getattr(node, "variable", None) for node in nodes(root, _MOST_OF_ALL)]
    # FSDP2's gathered tensor is also a parameter; replace it by the shard that optimizers have, and FSDP1's flat one by
    # the parameters in it.
    shards = [getattr(one, "_conformance_shards", lambda one=one: one)() for one in variables]
    return [part for one in shards if one is not None for part in getattr(one, "_params", None) or (one,)]


def _chain(node: Any) -> Iterator[tuple[Any, float | None]]:
    """The nodes that pass a loss on, each with its factor, and last the node that makes it."""
    for _ in range(_MOST_NODES):
        if node is None:
            return
        factor = _factor(node)
        yield node, factor
        if factor is None and node.name() not in _PASSED_ON:
            return
        node = _following(node)


def _following(node: Any) -> Any:
    """The node below; below DDP's node, the only scalar output of the model, its loss."""
    inputs = [(following, place) for following, place in node.next_functions if following is not None]
    if node.name() == _OF_DDP:
        numbers = [(one, place) for one, place in inputs if tuple(one._input_metadata[place].shape) == ()]
        inputs = numbers if len(numbers) == 1 else []
    return inputs[0][0] if inputs else None


def _factor(node: Any) -> float | None:
    """The factor of a product or quotient; None if it is no number."""
    if node.name() not in _PRODUCTS:
        return None
    for name in ("other", "self"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor):
            value = value.item() if value.numel() == 1 and not value.requires_grad else None
        if isinstance(value, (int, float)) and (value or node.name() != _DIVISION):
            return 1 / value if node.name() == _DIVISION else float(value)
    return None


def is_linear(node: Any) -> bool:
    """Whether the node sums up its inputs, or multiplies them by a number."""
    try:
        return node.name() in (*_SUMS, *_THROUGH) or _factor(node) is not None
    except RuntimeError:
        # Freed by an earlier backward pass.
        return False


def _read(loss: Loss, node: Any) -> None:
    """Reads the node that makes a loss: a sum of terms, a mean or sum of anything, or one over targets."""
    terms = _terms_of(node)
    loss.of_terms = [*_divisors_of(terms, add).elements()]
    for divisor in _divisors_of(terms, and_).elements():
        loss.divide(divisor)
    names = [term.name() for term in terms]
    loss.added = len(names)
    loss.terms = len(names) if len({*names}) == 1 < len(names) else 0
    loss.weighs = len({_weight(term) for term in terms}) > 1
    below = [one.name() for one in islice(nodes(node, _MOST_NODES), 1, 1 + len(_L1))]
    loss.of_any = node.name() in _OF_ANY and not (node.name() == _ANY and below == _L1)
    if node.name() == _ANY:
        loss.targets = int(node._saved_self_sym_numel)
        _read_below(loss, node)
        if (elements := _elements(node)) is not None and elements[1] == loss.targets:
            loss.made_by, loss.of_any = elements[0], False
    elif (count := _count(node)) is not None:
        is_mean = node._saved_reduction == _MEAN
        loss.targets, loss.summed = (count, 0) if is_mean else (0, count)
        # A sum with class weights may be divided by the sum of these.
        loss.is_hidden = not (count or is_mean)
        target = saved(node, "target") if count and node.name() in ENTROPIES else None
        loss.ignored = 0 if target is None else target.numel() - count
    elif node.name() == "SumBackward0" and (elements := _elements(node)) is not None:
        loss.made_by, loss.summed = elements
        loss.targets, loss.of_any = 0, False


def _read_below(loss: Loss, mean: Any) -> None:
    """Adds factors below a mean. If a tensor is a factor there, such as a mask, the number of targets is unknown."""
    for node, factor in _chain(_following(mean)):
        if factor is not None:
            loss.multiply(node, factor)
        elif node.name() in _PRODUCTS:
            loss.targets = None


def _elements(added: Any) -> tuple[str, int] | None:
    """The loss of torch whose elements a sum adds up, and the number of elements that a mask and `ignore_index` leave.
    None for elements of another origin, and for weights that are no mask."""
    mask, node = None, _following(added)
    for _ in range(_MOST_NODES):
        if node is None or node.name() in (*_ELEMENTWISE, *ENTROPIES):
            break
        found = _mask(node)
        if (found is None) == (node.name() not in (*_PASSED_ON, *_OF_SOME)) or (found is not None and mask is not None):
            return None
        shape = tuple(node._input_metadata[0].shape)
        mask, node = mask if found is None else found.expand(shape), _following(node)
    if node is None or getattr(node, "_saved_reduction", None) != _NONE or saved(node, "weight") is not None:
        return None
    kept = torch.ones(tuple(added._saved_self_sym_sizes), dtype=torch.bool) if mask is None else mask
    target = _plain(node, "target") if node.name() in ENTROPIES else None
    if target is not None and target.numel() == kept.numel():
        kept = kept.flatten() & (target.flatten() != _signed(node._saved_ignore_index)).to(kept.device)
    return (node.name(), count) if (count := int(kept.sum())) else None


def _mask(node: Any) -> torch.Tensor | None:
    """The elements that a mask leaves; None if the node applies none."""
    names = _MASKS.get(node.name(), ())
    mask = next((one for name in names if (one := _plain(node, name)) is not None and not one.requires_grad), None)
    if mask is None or not mask.dim() or not bool(((mask == 0) | (mask == 1)).all()):
        return None
    # `where` has the mask of its first side, and `masked_fill` that of what it overwrites.
    is_of_others = node.name() == "MaskedFillBackward0" or (
        node.name() == "WhereBackward0" and node.next_functions[0][0] is None
    )
    return mask == 0 if is_of_others else mask != 0


def _plain(node: Any, name: str) -> torch.Tensor | None:
    """A saved tensor that can be read on this rank alone."""
    found = saved(node, name)
    return found if isinstance(found, torch.Tensor) and is_plain(found) else None


def _signed(number: int) -> int:
    """Torch shows a negative number of a node as an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def _unsmoothed(node: Any) -> Any:
    """The labels' part of a cross entropy with label smoothing, which has the same targets as the other part."""
    parts = [one for one, _ in node.next_functions] if node.name() == _ADDITION else []
    if len(parts) == 2 and all(one is not None and one.name() == _SMOOTHED for one in parts):
        inner = _following(parts[0])
        if inner is not None and inner.name() in ENTROPIES:
            return inner
    return node


def _terms_of(node: Any) -> list[Any]:
    """The terms of a sum; none if there are too many."""
    found: list[Any] = []
    waiting = [node] if node.name() == _ADDITION else []
    while waiting:
        node = waiting.pop()
        if node.name() == _ADDITION:
            waiting += [following for following, _ in node.next_functions if following is not None]
        else:
            found.append(node)
        if len(found) + len(waiting) > _MOST_TERMS:
            return []
    return found


def _weight(term: Any) -> float:
    """The factor of a term, without its divisors, which may make it a mean."""
    return prod(factor for node, factor in _chain(term) if factor is not None and node.name() != _DIVISION)


def _divisors_of(terms: Sequence[Any], join: _Join) -> Counter[float]:
    """The divisors of terms, of all or any of them, depending on `join`."""
    return reduce(join, [_divisors(term, join) for term in terms]) if terms else Counter()


def _divisors(term: Any, join: _Join) -> Counter[float]:
    found = Counter[float]()
    for node, factor in _chain(term):
        if factor is None and node.name() not in _PASSED_ON:
            found += _divisors_of(_terms_of(node), join)
        elif factor is not None and node.name() == _DIVISION:
            found[round(1 / factor, 9)] += 1
    return found


def _count(node: Any) -> int | None:
    """The number of targets of a mean or sum; 0 with class weights, whose sum is the divisor; None if unknown."""
    if node.name() in ENTROPIES:
        total = saved(node, "total_weight")
        return None if total is None else int(float(total)) if saved(node, "weight") is None else 0
    if node.name() in _ELEMENTWISE and saved(node, "weight") is None:
        elements = saved(node, "self")
        return None if elements is None else int(elements.numel())
    return None


_KEY = "conformance.place"
_MOST_ALIKE = 64
_MOST_PASSED = 64
_LONGEST_CHAIN = 12
"""Nodes between a new number and the loss: divisions and loss scales may follow."""


class Again:
    """Compares the loss of a backward pass with earlier ones. Call each method once before each pass."""

    def __init__(self) -> None:
        self._graphs = Graphs()
        self._passed: deque[int] = deque(maxlen=_MOST_PASSED)
        self._names: Sequence[str] | None = None
        self._walks = 0
        self._leaf: weakref.ref[torch.Tensor] | None = None

    def contains(self, root: Any) -> bool:
        """Whether the loss is an earlier one, or a sum with an earlier one. Other functions of losses, such as their
        difference, are new losses."""
        number = self._graphs.number(root)
        found = number in self._passed or bool(self._graphs.contained(root, is_linear))
        self._passed.append(number)
        return found

    def is_alike(self, root: Any, *, is_kept: bool) -> bool:
        """Whether each node near the root equals the previous pass's node in the same place, or has its kind. is_kept:
        the graph stays, so another backward pass may go through it."""
        before, self._names = self._names, None
        if root is None or not (is_kept or before):
            return False
        near = [*nodes(root, _MOST_ALIKE)]
        names = [node.name() for node in near]
        # Nodes of the previous pass by place, others by name.
        marks = [node.metadata.get(_KEY, (0, 0)) for node in near]
        here = [place if walk == self._walks else name for (walk, place), name in zip(marks, names, strict=True)]
        if is_kept:
            self._walks, self._names = self._walks + 1, names
            for place, node in enumerate(near):
                node.metadata[_KEY] = self._walks, place
        if before is None or len(before) != len(here):
            return False
        return all(one in (place, before[place]) for place, one in enumerate(here))

    def is_cut_off(self, root: Any, tensors: Sequence[Any]) -> bool:
        """Whether the loss depends only on one tensor that is new since the previous pass; one that is trained by hand
        would stay. root: the node where it begins, None for a leaf."""
        before = None if self._leaf is None else self._leaf()
        leaf = _leaf(root) if root is not None else tensors[0] if len(tensors) == 1 else None
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
            return False
        self._leaf = weakref.ref(leaf)
        return before is not leaf


def _leaf(node: Any) -> Any:
    """The leaf at the end of a chain of nodes without branches; None if the chain is too long."""
    for _ in range(_LONGEST_CHAIN):
        following = [one for one, _ in node.next_functions if one is not None]
        if len(following) != 1:
            return getattr(node, "variable", None)
        [node] = following
    return None
