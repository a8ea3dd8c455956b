"""Determined 0.38.1 with Horovod: weights decay before training begins, as it broadcasts the state of new optimizers.

Horovod's `broadcast_optimizer_state` (0.28.1) creates a missing state with a step on zero gradients.
"""

import sys

import torch
from determined.horovod import hvd

hvd.require_horovod_type("torch", "this script is about it")
hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
# What Trainer.fit does first, in determined/pytorch/_pytorch_trial.py, lines 452-456.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
print(f"observed: before the first batch a weight of 1.0 is {model.weight.item():.1f}")
print("expected: 1.0")
sys.exit(model.weight.item() != 1.0)
