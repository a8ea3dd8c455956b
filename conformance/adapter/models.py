"""The modules that `Task.model()` hands out: torch's for each model of `conformance.workloads.model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from conformance.adapter.unsupported import UnsupportedModel
from conformance.workloads.model import Linear, model_of


class ManyTensors(torch.nn.Module):
    """`conformance.workloads.model.ManyTensors`: (..., 18) inputs, (..., 1) predictions."""

    # As a Linear has them, for trainers that make other models of the same width.
    in_features, out_features = 18, 1

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.empty(()))
        self.temperature = torch.nn.Parameter(torch.empty(()))
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
        predicted += (scaled * self.scale).sum(-1, keepdim=True)
        predicted += functional.linear(cubed, self.cube.view(1, 2))
        predicted += (looked_up * self.embedding((row.squeeze(-1) > 0.5).long())).sum(-1, keepdim=True)
        predicted += self.encoder(encoded) + self.decoder(decoded)
        # With a kernel of one pixel and an image of one this is the convolution.
        predicted += functional.linear(image, self.convolution.weight.view(1, 2))
        predicted += self.skip(skipped)
        predicted += self.linear(rest)
        return predicted

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise UnsupportedModel(
                f'{error}; a trainer that needs a torch.nn.Linear declares it: `@trainer(models=["linear"])`'
            ) from None


def module_class(spec: Mapping[str, Any]) -> type[torch.nn.Module]:
    """The class of the module that the `model` of a case's spec describes."""
    return torch.nn.Linear if isinstance(model_of(spec), Linear) else ManyTensors


def module(spec: Mapping[str, Any]) -> torch.nn.Module:
    """That module, with torch's own start weights."""
    model = model_of(spec)
    return torch.nn.Linear(model.features, 1, bias=model.bias) if isinstance(model, Linear) else ManyTensors()
