"""SpeechBrain 1.1.2: only the first parameter group of an optimizer is clipped."""

import os
import sys

import torch
from speechbrain import Brain
from torch.utils.data import DataLoader, TensorDataset

LIMIT = 1.0


class Regression(Brain):
    def compute_forward(self, batch, stage):
        return self.modules.model(batch[0])

    def compute_objectives(self, outputs, batch, stage):
        return torch.nn.functional.mse_loss(outputs, batch[1])


for name in ("RANK", "LOCAL_RANK"):
    os.environ.pop(name, None)
model = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
groups = [{"params": [model.weight]}, {"params": [model.bias]}]
options = {"device": "cpu", "max_grad_norm": LIMIT, "noprogressbar": True}
# At this rate, a step is the gradient that it used. Each of the two is -20.
brain = Regression({"model": model}, lambda parameters: torch.optim.SGD(groups, lr=1.0), {}, options)
brain.fit(range(1), DataLoader(TensorDataset(torch.ones(1, 1), torch.full((1, 1), 10.0))))
used = torch.cat([model.weight.detach().flatten(), model.bias.detach()])

print(f"observed: max_grad_norm is {LIMIT}, and the step uses gradients of the norm {used.norm():.4f}: {used.tolist()}")
print(f"expected: the norm of all is {LIMIT}")
sys.exit(abs(used.norm().item() - LIMIT) > 1e-4)
