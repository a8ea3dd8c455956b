"""pytorch-metric-learning 2.9.0: a model in DDP cannot load the checkpoint that it saved."""

import sys
import tempfile

import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.logging_presets import HookContainer
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
trunk = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(trunk.parameters(), lr=0.1)
parts = {"models": {"trunk": trunk}, "optimizers": {"trunk_optimizer": optimizer}}
learner = MetricLossOnly(**parts, batch_size=1, loss_funcs={"metric_loss": torch.nn.MSELoss()}, dataset=[])
with tempfile.TemporaryDirectory() as folder:
    hooks = HookContainer(record_keeper=None)
    hooks.save_models(learner, folder, 1)
    try:
        hooks.load_latest_saved_models(learner, folder)
        refused = None
    except RuntimeError as error:
        refused = str(error).splitlines()[0]
print(f"observed: {refused}" if refused else "observed: the checkpoint is loaded")
print("expected: the checkpoint is loaded")
torch.distributed.destroy_process_group()
sys.exit(refused is not None)
