"""FunASR 1.4.16: `funasr.bin.train` steps the schedule once more after each epoch."""

import contextlib
import logging
import os
import sys
import tempfile

import torch
from funasr.bin.train import main
from funasr.register import tables
from funasr.schedulers import scheduler_classes
from funasr.train_utils.device_funcs import force_gatherable
from torch.utils.data import BatchSampler, SequentialSampler

EPOCHS, BATCHES = 3, 2
rates = []


@tables.register("model_classes", "Regression")
class Regression(torch.nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, inputs):
        loss = self.linear(inputs).square().mean()
        return force_gatherable((loss, {}, len(inputs)), loss.device)


@tables.register("dataset_classes", "Ones")
class Ones(torch.utils.data.Dataset):
    def __init__(self, path, **settings):
        pass

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        return {"inputs": torch.ones(1)}

    collator = staticmethod(torch.utils.data.default_collate)


@tables.register("batch_sampler_classes", "OneByOne")
class OneByOne(BatchSampler):
    def __new__(cls, dataset, **settings):
        batches = super().__new__(cls)
        BatchSampler.__init__(batches, SequentialSampler(dataset), 1, drop_last=False)
        return {"batch_sampler": batches}

    def set_epoch(self, epoch):
        pass


class Counting(torch.optim.lr_scheduler.LambdaLR):
    """The rate is the number of steps that the schedule has made."""

    def __init__(self, optimizer):
        optimizer.register_step_pre_hook(lambda *_: rates.append(int(self.get_last_lr()[0])))
        super().__init__(optimizer, lambda step: float(step))


logging.disable()
scheduler_classes["counting"] = Counting
with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
    main(
        model="Regression",
        model_conf={},
        device="cpu",
        optim="sgd",
        optim_conf={"lr": 1.0},
        scheduler="counting",
        scheduler_conf={},
        dataset="Ones",
        dataset_conf={"batch_sampler": "OneByOne"},
        train_conf={"max_epoch": EPOCHS, "accum_grad": 1, "avg_nbest_model": 1},
        output_dir=folder,
    )
expected = [*range(EPOCHS * BATCHES)]
print(f"observed: {EPOCHS} epochs of {BATCHES} steps take the steps {rates} of the schedule")
print(f"expected: {expected}")
sys.exit(rates != expected)
