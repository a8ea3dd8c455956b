"""The parameters of the task's model, found again wherever a trainer moves, wraps or copies them."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.events import Number, values

Found = tuple[torch.Tensor | None, ...]


class Watched:
    """Knows the models that the task handed out, and which parameters the optimizer really steps."""

    def __init__(self, features: int, bias: bool) -> None:
        self._shapes = [(1, features), *([(1,)] if bias else [])]
        self._sizes = [features, *([1] if bias else [])]
        self._handed_out: list[Found] = []
        self._stepped: Found | None = None

    def add(self, model: torch.nn.Module) -> None:
        """A model that the task hands out."""
        self._handed_out.append(tuple(model.parameters()))

    def find(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """The task's parameters as `optimizer` holds them: by identity, else (a copied model) by shape."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        identities = {id(parameter) for parameter in held}
        for parameters in reversed(self._handed_out):
            if any(id(parameter) in identities for parameter in parameters):
                return parameters
        by_shape: list[torch.Tensor | None] = []
        for shape in self._shapes:
            match = next((parameter for parameter in held if tuple(parameter.shape) == shape), None)
            by_shape.append(match)
        return tuple(by_shape) if any(parameter is not None for parameter in by_shape) else None

    def stepped(self, parameters: Found) -> None:
        """The optimizer stepped these: from now on they are what `weights` reads."""
        self._stepped = parameters

    def is_model(self, module: torch.nn.Module) -> bool:
        """Whether `module` is the task's model or a copy of it."""
        own = module._parameters
        weight = own.get("weight")
        if not isinstance(module, torch.nn.Linear) or weight is None:
            return False
        if any(weight is parameters[0] for parameters in self._handed_out):
            return True
        shapes = [tuple(parameter.shape) for parameter in own.values() if parameter is not None]
        return shapes == self._shapes

    def weights(self, parameters: Found | None = None) -> list[Number]:
        """The values of `parameters`; without them, of those that were stepped last, or were handed out
        last."""
        chosen = parameters or self._stepped or (self._handed_out[-1] if self._handed_out else None)
        return values(chosen or [None] * len(self._sizes), self._sizes)

    def gradients(self, parameters: Found, scale: Any = None) -> list[Number]:
        """The values of their `.grad`, divided by `scale` if there is one."""
        gradients = [None if parameter is None else parameter.grad for parameter in parameters]
        if scale is not None:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
        return values(gradients, self._sizes)
