"""FunASR 1.4.16: with accumulation under DDP each rank trains a different model."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from funasr.train_utils.device_funcs import force_gatherable
from funasr.train_utils.trainer import Trainer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)

    def forward(self, inputs, targets):
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        return force_gatherable((loss, {}, len(inputs)), loss.device)


class Batches(BatchSampler):
    def set_epoch(self, epoch):
        pass


def run(rank, folder, weights):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    # Two micro-batches of one sample; those of the other rank have other targets.
    samples = [{"inputs": torch.ones(1), "targets": torch.full((1,), float(rank))} for _ in range(2)]
    loader = DataLoader(samples, batch_sampler=Batches(SequentialSampler(samples), 1, drop_last=False))
    model = DistributedDataParallel(Regression())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = Trainer(rank, use_ddp=True, output_dir=folder, device="cpu", accum_grad=2)
    trainer.train_epoch(model, optimizer, schedule, None, loader, epoch=0)
    weights[rank] = model.module.model.weight.item()
    dist.destroy_process_group()


def main():
    weights = mp.get_context("spawn").Manager().list([0.0, 0.0])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (folder, weights), nprocs=2)
    print(f"observed: after one step the ranks have the weights {list(weights)}")
    print("expected: both have the same, 1.0: the mean of the gradients 0 and -2")
    sys.exit(list(weights) != [1.0, 1.0])


if __name__ == "__main__":
    main()
