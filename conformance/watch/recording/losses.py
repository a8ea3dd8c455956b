"""What the graph of a loss shows: what it was divided by, whether it went backward before, or is cut off."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

import torch

from conformance.trace.state.graphs import Graphs, saved
from conformance.watch.records import ENTROPIES

_MOST_NODES, _MOST_TERMS = 12, 64
_MEAN = 1
"""torch's number for `reduction="mean"`."""

_ANY = "MeanBackward0"
_DIVISION = "DivBackward0"
_PRODUCTS = (_DIVISION, "MulBackward0")
_ADDITION = "AddBackward0"
_OF_ANY = (_ANY, "SumBackward0", "SumBackward1")
_SMOOTHED = "MulBackward1"
"""A product with a number in torch's own code. One in Python has another name."""
_ELEMENTWISE = (
    "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
    "HuberLossBackward0",
    "MseLossBackward0",
    "SmoothL1LossBackward0",
)
_SUMS = (
    "AddBackward0",
    "CatBackward0",
    "MeanBackward0",
    "MeanBackward1",
    "StackBackward0",
    "SumBackward0",
    "SumBackward1",
)
_OF_DDP = "_DDPSinkBackward"
"""What DDP puts around all that a model returns, where it looks for parameters that are not used."""
_THROUGH = ("ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0", "CloneBackward0")


@dataclass
class Loss:
    """factors: the numbers that it was multiplied with last, 0.25 for `loss / 4`. divisors: those of them that it was
    divided by, 4. targets: how many the mean below is of; 0 for a sum, None if it is not known. summed: how many the
    sum below is of; 0 for a mean. of_any: it is `mean` or `sum`, of anything. terms: how many losses of one kind are
    added up, 0 if there is one, or if they are of several kinds. is_hidden: it is multiplied with something that its
    graph does not show. of_terms: what single terms of a sum are divided by. ignored: how many targets were left out,
    by `ignore_index`. made_by: the name of the node below."""

    factors: list[float] = field(default_factory=list)
    divisors: list[float] = field(default_factory=list)
    targets: int | None = None
    summed: int = 0
    of_any: bool = False
    terms: int = 0
    is_hidden: bool = False
    of_terms: list[float] = field(default_factory=list)
    ignored: int = 0
    made_by: str = ""

    def add(self, node: Any, factor: float) -> None:
        """One more factor, of a product or quotient."""
        self.factors.append(factor)
        if node.name() == _DIVISION:
            self.divisors.append(1 / factor)


def of(root: Any, times: float | None = 1.0) -> Loss:
    """root: the node of the graph where the backward begins. times: what the gradient is multiplied with then; None if
    that is no number."""
    if times is None:
        return Loss(is_hidden=True)
    loss, node = Loss(), root
    if times != 1.0:
        loss.factors.append(times)
        loss.divisors += [1 / times] if times else []
    for _ in range(_MOST_NODES):
        if node is None:
            break
        try:
            factor = _factor(node)
            if factor is not None:
                loss.add(node, factor)
            elif node.name() not in (*_THROUGH, _OF_DDP):
                loss.made_by = node.name()
                node = _unsmoothed(node)
                loss.of_terms = _of_any_terms(node)
                for divisor in _of_all_terms(node):
                    loss.factors.append(1 / divisor)
                    loss.divisors.append(divisor)
                loss.targets, loss.summed = _targets(node)
                # A sum with weights of classes is divided by the sum of these.
                count = _count(node)
                target = saved(node, "target") if count and node.name() in ENTROPIES else None
                loss.ignored = 0 if target is None or not count else target.numel() - count
                loss.is_hidden = count == 0 and node._saved_reduction != _MEAN
                loss.of_any = node.name() in _OF_ANY
                loss.terms = _terms(node)
                if node.name() == _ANY:
                    _look_below(loss, node)
                break
        except RuntimeError:
            # Freed by a backward before, so this one will fail and say so.
            break
        node = _following(node)
    return loss


def _unsmoothed(node: Any) -> Any:
    """Of a cross entropy with smoothed labels, the part of the labels: the other one is over the same targets."""
    parts = [one for one, _ in node.next_functions] if node.name() == _ADDITION else []
    if len(parts) == 2 and all(one is not None and one.name() == _SMOOTHED for one in parts):
        inner = _following(parts[0])
        if inner is not None and inner.name() in ENTROPIES:
            return inner
    return node


def _look_below(loss: Loss, mean: Any) -> None:
    """What is multiplied with a number before its mean is taken is multiplied with it. What is multiplied with a tensor
    may be any share of it."""
    node = _following(mean)
    for _ in range(_MOST_NODES):
        if node is None or node.name() not in (*_THROUGH, *_PRODUCTS):
            return
        factor = _factor(node)
        if factor is not None:
            loss.add(node, factor)
        elif node.name() in _PRODUCTS:
            loss.targets = None
            return
        node = _following(node)


def _of_all_terms(node: Any) -> list[float]:
    """What all terms of a sum are divided by, each by itself."""
    of_each = [Counter(_divisors(term, _of_all_terms)) for term in _terms_of(node)]
    return [*reduce(and_, of_each).elements()] if of_each else []


def _of_any_terms(node: Any) -> list[float]:
    """What single terms of a sum are divided by."""
    return [divisor for term in _terms_of(node) for divisor in _divisors(term, _of_any_terms)]


def _terms_of(node: Any) -> list[Any]:
    """Of a sum; none of one that has too many."""
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


def _divisors(node: Any, of_sum: Callable[[Any], list[float]]) -> list[float]:
    found: list[float] = []
    for _ in range(_MOST_NODES):
        if node is None:
            break
        factor = _factor(node)
        if factor is not None:
            found += [round(1 / factor, 9)] if node.name() == _DIVISION else []
        elif node.name() not in _THROUGH:
            return found + of_sum(node)
        node = _following(node)
    return found


def _following(node: Any) -> Any:
    """Of what a model in DDP returns, the only number: its loss."""
    inputs = [(following, place) for following, place in node.next_functions if following is not None]
    if node.name() == _OF_DDP:
        numbers = [(one, place) for one, place in inputs if tuple(one._input_metadata[place].shape) == ()]
        inputs = numbers if len(numbers) == 1 else []
    return inputs[0][0] if inputs else None


def is_linear(node: Any) -> bool:
    """Whether it sums up what comes in, or multiplies it with a number."""
    try:
        return node.name() in _SUMS + _THROUGH or _factor(node) is not None
    except RuntimeError:
        # Freed by a backward before.
        return False


def _factor(node: Any) -> float | None:
    """The number that a product or quotient has beside the loss."""
    if node.name() not in _PRODUCTS:
        return None
    for name in ("other", "self"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor):
            value = value.item() if value.numel() == 1 and not value.requires_grad else None
        if isinstance(value, (int, float)) and (value or node.name() != _DIVISION):
            return 1 / value if node.name() == _DIVISION else float(value)
    return None


def _terms(node: Any) -> int:
    """How many nodes of one name a sum of several has; 0 for anything else."""
    found = [term.name() for term in _terms_of(node)]
    return len(found) if len({*found}) == 1 < len(found) else 0


def _targets(node: Any) -> tuple[int | None, int]:
    """How many targets the loss is a mean of, and how many a sum of."""
    if node.name() == _ANY:
        return int(node._saved_self_sym_numel), 0
    count = _count(node)
    if count is None:
        return None, 0
    return (count, 0) if node._saved_reduction == _MEAN else (0, count)


def _count(node: Any) -> int | None:
    if node.name() in ENTROPIES:
        total = saved(node, "total_weight")
        # With weights of classes, it is their sum.
        return None if total is None else int(float(total)) if saved(node, "weight") is None else 0
    if node.name() in _ELEMENTWISE and saved(node, "weight") is None:
        elements = saved(node, "self")
        return None if elements is None else int(elements.numel())
    return None


_KEY = "conformance.place"
_NUMBERS = ("dim", "dim0", "dim1", "end", "index", "start", "step")
"""What nodes have saved of which part they take. Nothing else is looked at: what is no number may be packed away."""
_BY_TENSORS = ("GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "TakeBackward0")
"""Those that save as tensors which part they take."""
_MOST_ALIKE = 64
_MOST_PASSED = 64


class Again:
    """What it says of a backward pass, each of which it has to be asked for once, before it begins."""

    def __init__(self) -> None:
        self._graphs = Graphs()
        self._passed: deque[int] = deque(maxlen=_MOST_PASSED)
        self._names: Sequence[str | None] | None = None
        self._walks = 0

    def contains(self, root: Any) -> bool:
        """Whether the loss is an earlier one, or a sum in which there is one. Any other function of losses, such as how
        far they are apart, is a loss of its own."""
        number = self._graphs.number(root)
        found = number in self._passed or bool(self._graphs.contained(root, is_linear))
        self._passed.append(number)
        return found

    def is_alike(self, root: Any, *, is_kept: bool) -> bool:
        """Whether each node near the root is one of the backward pass before, in the same place, or is like the one
        there. is_kept: whether the graph stays, so that another backward pass may go through it."""
        before, self._names = self._names, None
        if root is None or not (is_kept or before):
            return False
        nodes = _nodes(root)
        names = [_likeness(node) for node in nodes]
        places = [node.metadata.get(_KEY, (0, 0)) for node in nodes]
        # Those of the pass before are known by their places, all others by their names.
        here = [place if walk == self._walks else name for (walk, place), name in zip(places, names, strict=True)]
        alike = before is not None and len(before) == len(here) and None not in here
        for place, (one, other) in enumerate(zip(here, before or (), strict=False)):
            alike = alike and one in (place, other)
        if is_kept:
            self._walks += 1
            self._names = names
            for place, node in enumerate(nodes):
                node.metadata[_KEY] = self._walks, place
        return alike


def _likeness(node: Any) -> str | None:
    """What has to be the same of two nodes that are alike; None where it is not known."""
    name = str(node.name())
    if name in _BY_TENSORS:
        return None
    return f"{name} {[getattr(node, f'_saved_{number}', None) for number in _NUMBERS]}"


def _nodes(root: Any) -> list[Any]:
    """Those near the root, each once, in the order of their distance."""
    nodes, known = [root], {root}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None and following not in known and len(nodes) < _MOST_ALIKE:
                nodes.append(following)
                known.add(following)
    return nodes


_LONGEST_CHAIN = 12
"""Divisions and loss scales may come after."""


class CutOff:
    """Has to be asked once for each backward pass."""

    def __init__(self) -> None:
        self._last: weakref.ref[torch.Tensor] | None = None

    def sees(self, root: Any, tensors: Sequence[Any]) -> bool:
        """Whether the loss comes from a single number alone, which was none in the backward pass before: one that is
        trained by hand stays. root: the node where it begins, None for a leaf."""
        before = None if self._last is None else self._last()
        leaf = _leaf(root) if root is not None else tensors[0] if len(tensors) == 1 else None
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter) or leaf.numel() != 1:
            return False
        self._last = weakref.ref(leaf)
        return before is not leaf


def _leaf(node: Any) -> Any:
    """What a chain of nodes without branches ends in; None if it does not end soon."""
    for _ in range(_LONGEST_CHAIN):
        following = [one for one, _ in node.next_functions if one is not None]
        if len(following) != 1:
            return getattr(node, "variable", None)
        [node] = following
    return None
