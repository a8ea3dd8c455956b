"""Lightning Fabric 2.6.6: clipping by norm ends training at the first overflow in fp16."""

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

# At this loss scale the first gradient overflows fp16, and at the next one it does not.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
# "16-mixed" stands for this plugin; on a CPU it would turn into "bf16-mixed".
fabric = Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu", scaler))
fabric.launch()
module = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(module.weight)
model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))

try:
    for _ in range(2):
        loss = torch.nn.functional.mse_loss(model(torch.ones(1, 1)), torch.ones(1, 1))
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    observed = f"the first step is skipped, and the second leaves the weight at {module.weight.item():.1f}"
except RuntimeError as error:
    observed = str(error).split(",")[0]

expected = "the first step is skipped, and the second leaves the weight at 0.1"
print(f"observed: {observed}")
print(f"expected: {expected}")
sys.exit(observed != expected)
