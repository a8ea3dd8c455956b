"""DeepSpeed 0.19.8: in fp16 without ZeRO, gradients are unscaled although the loss was not scaled."""

import logging
import os
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29543"}
logging.disable()
# Otherwise DeepSpeed refuses a CPU without fp16 instructions, although torch can compute in fp16.
get_accelerator().is_fp16_supported = lambda: True
deepspeed.init_distributed("gloo", verbose=False)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 1.0)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "fp16": {"enabled": True, "initial_scale_power": 4},
    "zero_optimization": {"stage": 0},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
engine.backward(engine(torch.ones(1, 1, dtype=torch.float16)).sum())
engine.step()
[[master]] = engine.optimizer.fp32_groups
print(f"observed: with a gradient of 1 and a rate of 0.25, a weight of 1 becomes {master.item()}")
print(f"          the loss scale is {engine.optimizer.loss_scale:.0f}")
print("expected: 0.75")
torch.distributed.destroy_process_group()
sys.exit(master.item() != 0.75)
