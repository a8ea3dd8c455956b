"""pytorch-accelerated 0.1.61: `num_items_in_batch`, as documented, multiplies gradients by the number of processes."""

import os
import sys
import tempfile

import torch
import torch.multiprocessing as mp
from pytorch_accelerated import Trainer
from torch.utils.data import TensorDataset

RANKS = 2
ACCUMULATION = 2


class Counted(Trainer):
    """`calculate_train_batch_loss` as its docstring shows it: a mean over the items of the batch, and their number."""

    def calculate_train_batch_loss(self, batch):
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": torch.tensor(len(batch[0]))}


def run(rank, folder, weights):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ.update({"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"})
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for number, kind in enumerate((Trainer, Counted)):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        # One window: on each rank two micro-batches of one sample. All samples are equal.
        kind(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1.0), callbacks=()).train(
            TensorDataset(torch.ones(RANKS * ACCUMULATION, 1), torch.ones(RANKS * ACCUMULATION, 1)),
            num_epochs=1,
            per_device_batch_size=1,
            gradient_accumulation_steps=ACCUMULATION,
            train_dataloader_kwargs={"num_workers": 0},
        )
        weights[number] = model.weight.item()
    torch.distributed.destroy_process_group()


def main():
    weights = mp.get_context("spawn").Manager().list([0.0, 0.0])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (folder, weights), nprocs=RANKS)
    without, counted = weights
    print(f"observed: one step goes to {without}, and to {counted} if the batches state their number of items")
    print(f"expected: both to {without}, as all batches have equally many items")
    sys.exit(without != counted)


if __name__ == "__main__":
    main()
