"""The parameters of the watched model, found again wherever a trainer moves, wraps or copies them."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from conformance.trace.values import Number, own_part, values

Found = tuple[torch.Tensor | None, ...]
Shapes = list[tuple[int, ...]]

MOST_ELEMENTS = 4096
"""Values are read of models up to this size."""


class Watched:
    """Knows the models that are watched, and which parameters the optimizer really steps.

    shapes: those of the parameters of the task's model, a `torch.nn.Linear`, by which a copy of it is recognised.
    Without them only the very models that are added are known.
    is_readable: whether the model is so small that values are read.
    """

    def __init__(self, shapes: Shapes | None = None) -> None:
        self._knows_copies = shapes is not None
        self._measure(shapes or [])
        self._models: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._latest: Found = ()
        self._stepped: Found | None = None
        self._numbers: dict[int, int] = {}
        # Keeps all alive, so that their identities stay theirs.
        self._found: dict[int, Found] = {}
        self._followers: list[Callable[[torch.nn.Module], None]] = []

    def add(self, model: torch.nn.Module) -> None:
        """Watch a model; if it is watched already, read its parameters again."""
        parameters = tuple(model.parameters())
        self._models[id(model)] = weakref.ref(model)
        self._hand_out(parameters)
        if not self._knows_copies:
            self._measure([tuple(parameter.shape) for parameter in parameters])
        for act in self._followers:
            act(model)

    @contextmanager
    def followed_by(self, act: Callable[[torch.nn.Module], None]) -> Iterator[None]:
        """Within this, `act` is called with each model that is added, and at once with those that there are."""
        for reference in self._models.values():
            if (model := reference()) is not None:
                act(model)
        self._followers.append(act)
        try:
            yield
        finally:
            self._followers.remove(act)

    def is_model(self, module: torch.nn.Module) -> bool:
        """Whether `module` is a watched model or, of the task's, a copy of it, which is watched from now on."""
        known = self._models.get(id(module))
        if known is not None and known() is module:
            return True
        if not self._knows_copies or not isinstance(module, torch.nn.Linear):
            return False
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        if [tuple(parameter.shape) for parameter in own] != self._shapes and not self.numbers(own[:1]):
            return False
        self.add(module)
        return True

    @property
    def current(self) -> Found:
        """The parameters that were stepped or added last."""
        return self._stepped or self._latest

    def numbers(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The positions of those among `tensors` that are watched parameters, in the order of `model.parameters()`."""
        known = self._numbers
        return sorted({known[identity] for identity in map(id, tensors) if identity in known})

    def owners(self, gradients: Iterable[torch.Tensor]) -> list[int]:
        """The positions of the parameters whose `.grad` is among `gradients`."""
        identities = {id(gradient) for gradient in gradients}
        return [n for n, p in enumerate(self.current) if p is not None and id(p.grad) in identities]

    def find(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """The watched parameters as `optimizer` holds them: by identity, else (a copied model) by shape."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._found:
                    return self._found[id(parameter)]
        if not self._knows_copies:
            return None
        by_shape: list[torch.Tensor | None] = []
        for shape in self._shapes:
            match = next((parameter for parameter in held_by(optimizer) if tuple(parameter.shape) == shape), None)
            by_shape.append(match)
        if all(parameter is None for parameter in by_shape):
            return None
        return self._hand_out(tuple(by_shape))

    def stepped(self, parameters: Found) -> None:
        """The optimizer stepped these: from now on they are what `weights` reads."""
        self._stepped = parameters

    def _hand_out(self, parameters: Found) -> Found:
        self._latest = parameters
        for number, parameter in enumerate(parameters):
            if parameter is not None:
                self._numbers[id(parameter)] = number
                self._found[id(parameter)] = parameters
        return parameters

    def _measure(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._sizes = [math.prod(shape) for shape in shapes]
        self.is_readable = sum(self._sizes) <= MOST_ELEMENTS

    @property
    def size(self) -> int:
        """The number of elements of all parameters."""
        return sum(self._sizes)

    def weights(self, parameters: Found | None = None) -> list[Number] | None:
        """The values of `parameters`; without them, of those that were stepped or added last."""
        if not self.is_readable:
            return None
        return values(parameters or self.current or [None] * len(self._shapes), self._sizes)

    def gradients(self, parameters: Found, scale: Any = None, only: Sequence[int] | None = None) -> list[Number] | None:
        """The values of their `.grad`, divided by `scale` if there is one; null for those not in `only`."""
        if not self.is_readable:
            return None
        gradients = [None if parameter is None else parameter.grad for parameter in parameters]
        if only is not None:
            gradients = [gradient if number in only else None for number, gradient in enumerate(gradients)]
        if scale is not None:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
        return values(gradients, self._sizes)

    def state(self, optimizer: torch.optim.Optimizer) -> str | None:
        """A digest of what the optimizer keeps for each of its parameters; None of a large model."""
        if not self.is_readable:
            return None
        kept = [
            [(name, _plain(value)) for name, value in sorted(optimizer.state.get(parameter, {}).items())]
            for parameter in held_by(optimizer)
        ]
        return hashlib.blake2b(repr(kept).encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    return own_part(value).tolist() if isinstance(value, torch.Tensor) else value


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside a framework's wrapper, which is an optimizer itself and keeps it under this name."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all of an optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
