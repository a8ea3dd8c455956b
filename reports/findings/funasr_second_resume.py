"""FunASR 1.4.16: a second resume within one epoch starts again from the first."""

import contextlib
import logging
import os
import sys
import tempfile

import torch
from funasr.bin.train import main
from funasr.register import tables
from funasr.train_utils.device_funcs import force_gatherable
from torch.utils.data import BatchSampler, SequentialSampler

BATCHES, SAVED_EVERY = 6, 2
read, stops = [], []


class Stopped(Exception):
    pass


@tables.register("model_classes", "Regression")
class Regression(torch.nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, inputs):
        if not self.training:
            return force_gatherable((inputs.sum(), {}, 1), inputs.device)
        if len(read) == SAVED_EVERY:
            raise Stopped
        read.append(int(inputs))
        loss = self.linear(inputs).square().mean()
        return force_gatherable((loss, {}, 1), loss.device)


@tables.register("dataset_classes", "Numbers")
class Numbers(torch.utils.data.Dataset):
    def __init__(self, path, **settings):
        pass

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        return {"inputs": torch.tensor([float(number)])}

    collator = staticmethod(torch.utils.data.default_collate)


@tables.register("batch_sampler_classes", "OneByOne")
class OneByOne(BatchSampler):
    """Begins at `start_step`, as CustomDistributedBufferDynamicBatchSampler."""

    def __new__(cls, dataset, start_step=0, **settings):
        batches = super().__new__(cls)
        BatchSampler.__init__(batches, SequentialSampler(dataset), 1, drop_last=False)
        batches.start_step = start_step
        return {"batch_sampler": batches}

    def __iter__(self):
        return iter([*super().__iter__()][self.start_step :])

    def set_epoch(self, epoch):
        pass


def train(folder):
    """The batches that it trains on until it is stopped, after it has saved once."""
    read.clear()
    with contextlib.redirect_stdout(nothing), contextlib.suppress(Stopped):
        main(
            model="Regression",
            model_conf={},
            device="cpu",
            optim="sgd",
            optim_conf={"lr": 0.0},
            scheduler="steplr",
            scheduler_conf={"step_size": 100},
            dataset="Numbers",
            dataset_conf={"batch_sampler": "OneByOne"},
            train_conf={"max_epoch": 1, "save_checkpoint_interval": SAVED_EVERY, "avg_nbest_model": 1},
            output_dir=folder,
        )
    return list(read)


logging.disable()
with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing:
    found = [train(folder) for _ in range(3)]
expected = [[0, 1], [2, 3], [4, 5]]
print(f"observed: an epoch of {BATCHES} batches, stopped twice, is read as {found}")
print(f"expected: {expected}")
sys.exit(found != expected)
