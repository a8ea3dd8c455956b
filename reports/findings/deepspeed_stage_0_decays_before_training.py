"""DeepSpeed 0.19.8: in fp16 without ZeRO, `initialize` creates the optimizer state by a step that decays weights."""

import logging
import os
import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29544"}
logging.disable()
# Otherwise DeepSpeed refuses a CPU without fp16 instructions, although torch can compute in fp16.
get_accelerator().is_fp16_supported = lambda: True
deepspeed.init_distributed("gloo", verbose=False)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 0},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
[[master]] = engine.optimizer.fp32_groups
count = int(optimizer.state[master]["step"])
print(f"observed: before the first batch, the master of a weight of 1 is {master.item()}, AdamW's count {count}")
print("expected: 1.0 and 0")
torch.distributed.destroy_process_group()
sys.exit((master.item(), count) != (1.0, 0))
