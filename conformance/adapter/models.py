"""The modules that `Task.model()` hands out: torch's for each model of `conformance.workloads.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from conformance.adapter.declaration import UnsupportedModel
from conformance.workloads import model

_OF_LINEAR_ALONE = ("weight", "bias", "reset_parameters")


class Counting(torch.nn.Linear):
    """`workloads.model.Counting`: (..., features) inputs, (..., 1) predictions."""

    samples: torch.Tensor
    total: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features, 1)
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.samples.add_(inputs[..., 0].numel())
                self.total.add_(inputs.square().sum() * float(model.Counting.SCALE))
        return super().forward(inputs)


class WithDropout(torch.nn.Linear):
    """`workloads.model.WithDropout`: (..., features) inputs, (..., 1) predictions."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        zeros = functional.dropout(torch.zeros_like(inputs), training=self.training)
        return super().forward(inputs + zeros)


class OfOnePixel(torch.nn.Conv2d):
    """A 1x1 convolution of images of one pixel, computed as a matrix product."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(..., channels) images, (..., 1) predictions."""
        return functional.linear(image, self.weight.flatten(1))


class Experts(torch.nn.ModuleList):
    """Modules, one per sample. A module that no sample uses is not called and gets no gradient."""

    def forward(self, inputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """(..., features) inputs, (..., 1) numbers of experts, (..., 1) predictions."""
        predicted = torch.zeros_like(numbers)
        for number, expert in enumerate(self):
            takes = numbers == number
            if takes.any():
                predicted = predicted + torch.where(takes, expert(inputs), 0.0)
        return predicted


class _Module(torch.nn.Module):
    """A module that is not a `torch.nn.Linear`, and tells a trainer that needs one."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in _OF_LINEAR_ALONE:
                raise
            raise UnsupportedModel(
                f'{error}; if the trainer needs a torch.nn.Linear, add `@trainer(models=["linear"])`'
            ) from None


class ManyTensors(_Module):
    """`workloads.model.ManyTensors`: (..., 18) inputs, (..., 1) predictions."""

    # Same as in a Linear, for trainers that make other models of the same width.
    in_features, out_features = 18, 1

    def __init__(self, *, scalars: bool = True, experts: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.empty(() if scalars else 1))
        self.temperature = torch.nn.Parameter(torch.empty(() if scalars else 1))
        self.scale = torch.nn.Parameter(torch.empty(2))
        self.cube = torch.nn.Parameter(torch.empty(2, 1, 1))
        if experts:
            self.experts = Experts(torch.nn.Linear(2, 1, bias=False) for _ in range(2))
        else:
            self.embedding = torch.nn.Embedding(2, 2, sparse=sparse)
        self.encoder = torch.nn.Linear(2, 1, bias=False)
        self.decoder = torch.nn.Linear(2, 1, bias=False)
        self.decoder.weight = self.encoder.weight
        self.convolution = OfOnePixel(2, 1, kernel_size=1, bias=False)
        self.skip = torch.nn.Linear(1, 1, bias=False)
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second, scaled, cubed, row, looked_up, encoded, decoded, image, skipped, rest = inputs.split(
            [1, 1, 2, 2, 1, 2, 2, 2, 2, 1, 2], dim=-1
        )
        predicted: torch.Tensor = first * self.gain + second * self.temperature
        predicted += (scaled * self._scale()).sum(-1, keepdim=True)
        predicted += functional.linear(cubed, self._cube().view(1, 2))
        if "experts" in self._modules:
            predicted += self.experts(looked_up, row)
        else:
            predicted += (looked_up * self.embedding(self._rows(row.squeeze(-1) > 0.5))).sum(-1, keepdim=True)
        predicted += self.encoder(encoded) + self.decoder(decoded)
        predicted += self.convolution(image)
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


class LargeTensors(ManyTensors):
    """`workloads.model.LargeTensors`, which uses few elements of three large parameters."""

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


class TwoLayers(_Module):
    """`workloads.model.TwoLayers`: (..., features) inputs, (..., 1) predictions."""

    # Same as in a Linear.
    out_features = 1

    def __init__(self, in_features: int, hidden: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.first = torch.nn.Linear(in_features, hidden, bias=False)
        self.second = torch.nn.Linear(hidden, 1, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        predicted: torch.Tensor = self.second(self.first(inputs))
        return predicted


_MODULES: dict[str, type[torch.nn.Module]] = {
    "linear": torch.nn.Linear,
    "with-dropout": WithDropout,
    "many-tensors": ManyTensors,
    "large-tensors": LargeTensors,
    "two-layers": TwoLayers,
    "counting": Counting,
}


def module_class(spec: Mapping[str, Any]) -> type[torch.nn.Module]:
    """The class of the module that the `model` of a case's spec describes."""
    return _MODULES[spec["kind"]]


def module(spec: Mapping[str, Any]) -> torch.nn.Module:
    """That module, with torch's default initial weights."""
    described = model.model_of(spec)
    built: torch.nn.Module
    if isinstance(described, model.Counting):
        built = Counting(described.features)
    elif isinstance(described, model.Linear):
        built = module_class(spec)(described.features, 1, bias=described.bias)
    elif isinstance(described, model.TwoLayers):
        built = TwoLayers(described.features, described.hidden)
    elif type(described) is model.ManyTensors:
        built = ManyTensors(scalars=described.scalars, experts=described.experts, sparse=described.sparse)
    else:
        built = module_class(spec)()
    for tensor in described.tensors:
        built.get_parameter(tensor.name).requires_grad_(not tensor.frozen)
    return built


def parameters(spec: Mapping[str, Any], rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """The initial parameters of that module on `rank`."""
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
