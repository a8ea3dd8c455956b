"""Lightning Fabric 2.6.6: with precision "64-true", the outputs of a model are rounded to float32."""

import sys

import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
fabric.launch()
model = fabric.setup(torch.nn.Linear(1, 1, bias=False))
torch.nn.init.constant_(model.weight, 0.1)
outputs = model(torch.ones(1, 1, dtype=torch.float64))

print(f"observed: a model in {model.weight.dtype} gives {outputs.item()} in {outputs.dtype}")
print(f"expected: {model.weight.item()} in {model.weight.dtype}")
sys.exit(outputs.dtype != torch.float64)
