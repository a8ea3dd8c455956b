"""DeepSpeed 0.19.8: when the loss scale grows, gradients that have the old scale are divided by the new one."""

import logging
import os
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29545"}
logging.disable()
# Otherwise DeepSpeed refuses a CPU without fp16 instructions, although torch can compute in fp16.
get_accelerator().is_fp16_supported = lambda: True
deepspeed.init_distributed("gloo", verbose=False)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 1.0)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 3},
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.125), config=config)
weight, steps, scales = 1.0, [], []
for _ in range(5):
    scales.append(int(engine.optimizer.loss_scale))
    engine.backward(engine(torch.ones(1, 1, dtype=torch.float16)).sum())
    engine.step()
    before, weight = weight, engine.optimizer.single_partition_of_fp32_groups[0].tolist()[0]
    steps.append(before - weight)
print(f"observed: with a gradient of 1 and a rate of 0.125, the weight changes by {steps}")
print(f"          the loss scale of these steps is {scales}")
print(f"expected: {[0.125] * 5}")
torch.distributed.destroy_process_group()
sys.exit(steps != [0.125] * 5)
