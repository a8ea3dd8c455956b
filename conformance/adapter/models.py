"""The modules that `Task.model()` hands out: torch's for each model of `conformance.workloads.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from conformance.adapter.unsupported import UnsupportedModel
from conformance.workloads import model

_OF_LINEAR_ALONE = ("weight", "bias", "reset_parameters")


class ManyTensors(torch.nn.Module):
    """`conformance.workloads.model.ManyTensors`: (..., 18) inputs, (..., 1) predictions."""

    # As a Linear has them, for trainers that make other models of the same width.
    in_features, out_features = 18, 1

    def __init__(self, *, scalars: bool = True) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.empty(() if scalars else 1))
        self.temperature = torch.nn.Parameter(torch.empty(() if scalars else 1))
        self.scale = torch.nn.Parameter(torch.empty(2))
        self.cube = torch.nn.Parameter(torch.empty(2, 1, 1))
        self.embedding = torch.nn.Embedding(2, 2)
        self.encoder = torch.nn.Linear(2, 1, bias=False)
        self.decoder = torch.nn.Linear(2, 1, bias=False)
        self.decoder.weight = self.encoder.weight
        self.convolution = torch.nn.Conv2d(2, 1, kernel_size=1, bias=False)
        self.skip = torch.nn.Linear(1, 1, bias=False)
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second, scaled, cubed, row, looked_up, encoded, decoded, image, skipped, rest = inputs.split(
            [1, 1, 2, 2, 1, 2, 2, 2, 2, 1, 2], dim=-1
        )
        predicted: torch.Tensor = first * self.gain + second * self.temperature
        predicted += (scaled * self._scale()).sum(-1, keepdim=True)
        predicted += functional.linear(cubed, self._cube().view(1, 2))
        predicted += (looked_up * self.embedding(self._rows(row.squeeze(-1) > 0.5))).sum(-1, keepdim=True)
        predicted += self.encoder(encoded) + self.decoder(decoded)
        # With a kernel of one pixel and an image of one this is the convolution.
        predicted += functional.linear(image, self.convolution.weight.view(1, 2))
        predicted += self.skip(skipped)
        predicted += self.linear(rest)
        return predicted

    def _scale(self) -> torch.Tensor:
        return self.scale

    def _cube(self) -> torch.Tensor:
        return self.cube

    def _rows(self, is_second: torch.Tensor) -> torch.Tensor:
        """The rows of the embedding to look up."""
        return is_second.long()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in _OF_LINEAR_ALONE:
                raise
            raise UnsupportedModel(
                f'{error}; a trainer that needs a torch.nn.Linear declares it: `@trainer(models=["linear"])`'
            ) from None


class LargeTensors(ManyTensors):
    """`conformance.workloads.model.LargeTensors`, which uses few elements of three large parameters."""

    def __init__(self) -> None:
        super().__init__()
        _, _, scale, cube, table, *_ = model.LargeTensors().tensors
        self.scale = torch.nn.Parameter(torch.empty(scale.shape))
        self.cube = torch.nn.Parameter(torch.empty(cube.shape))
        self.embedding = torch.nn.Embedding(table.shape[0], table.shape[1])
        self._of_scale, self._of_cube = map(list, (scale.used or (), cube.used or ()))
        self._first, _, self._second, _ = (position // 2 for position in table.used or ())

    def _scale(self) -> torch.Tensor:
        return self.scale[self._of_scale]

    def _cube(self) -> torch.Tensor:
        return self.cube.flatten()[self._of_cube]

    def _rows(self, is_second: torch.Tensor) -> torch.Tensor:
        return torch.where(is_second, self._second, self._first)


_MODULES: dict[str, type[torch.nn.Module]] = {
    "linear": torch.nn.Linear,
    "many-tensors": ManyTensors,
    "large-tensors": LargeTensors,
}


def module_class(spec: Mapping[str, Any]) -> type[torch.nn.Module]:
    """The class of the module that the `model` of a case's spec describes."""
    return _MODULES[spec["kind"]]


def module(spec: Mapping[str, Any]) -> torch.nn.Module:
    """That module, with torch's own start weights."""
    described = model.model_of(spec)
    built: torch.nn.Module
    if isinstance(described, model.Linear):
        built = torch.nn.Linear(described.features, 1, bias=described.bias)
    elif isinstance(described, model.ManyTensors) and not described.scalars:
        built = ManyTensors(scalars=False)
    else:
        built = module_class(spec)()
    for tensor in described.tensors:
        built.get_parameter(tensor.name).requires_grad_(not tensor.frozen)
    return built


def parameters(spec: Mapping[str, Any], rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """The parameters with which that module begins on `rank`."""
    tensors = model.model_of(spec).tensors
    parts = torch.tensor(spec["weights"][rank], dtype=dtype).split([tensor.size for tensor in tensors])
    return [_filled(tensor, part) for tensor, part in zip(tensors, parts, strict=True)]


def _filled(tensor: model.Tensor, values: torch.Tensor) -> torch.Tensor:
    if tensor.used is None:
        return values.view(tensor.shape)
    *_, other = values
    whole = torch.full(tensor.shape, float(other), dtype=values.dtype)
    whole.view(-1)[list(tensor.used)] = values[: len(tensor.used)]
    return whole
