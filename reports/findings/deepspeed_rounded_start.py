"""DeepSpeed 0.19.8: bf16 training starts from rounded weights."""

import logging
import os
import sys

import deepspeed
import torch

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29542"}
logging.disable()
deepspeed.init_distributed("gloo", verbose=False)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 1 + 2**-12)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
[master] = engine.optimizer.single_partition_of_fp32_groups
print(f"observed: a weight of {1 + 2**-12} is {master.tolist()[0]} in its fp32 master before the first step")
print(f"expected: {1 + 2**-12}")
torch.distributed.destroy_process_group()
sys.exit(master.tolist()[0] != 1 + 2**-12)
