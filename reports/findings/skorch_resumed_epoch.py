"""skorch 1.4.0: with AccelerateMixin, resumed training reads the order of epoch 0."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from skorch import NeuralNet
from skorch.callbacks import Callback, Checkpoint
from skorch.hf import AccelerateMixin
from torch.utils.data import DistributedSampler, TensorDataset

SAMPLES = TensorDataset(torch.arange(6.0)[:, None], torch.zeros(6, 1))


class Net(AccelerateMixin, NeuralNet):
    pass


class SetEpoch(Callback):
    def __init__(self, sampler):
        self.sampler = sampler

    def on_epoch_begin(self, net, **kwargs):
        self.sampler.set_epoch(len(net.history) - 1)


class Model(torch.nn.Linear):
    """Records the samples that it reads."""

    def __init__(self, noted):
        super().__init__(1, 1)
        self.noted = noted

    def forward(self, inputs):
        self.noted += inputs.flatten().int().tolist()
        return super().forward(inputs)


def read(folder, epochs, resume=False):
    noted = []
    sampler = DistributedSampler(SAMPLES, num_replicas=1, rank=0)
    checkpoint = Checkpoint(monitor=None, f_criterion=None, dirname=folder)
    net = Net(
        Model(noted),
        lambda: torch.nn.functional.mse_loss,
        accelerator=Accelerator(cpu=True),
        iterator_train__sampler=sampler,
        batch_size=1,
        train_split=None,
        verbose=0,
        callbacks=[SetEpoch(sampler), checkpoint],
    ).initialize()
    if resume:
        net.load_params(checkpoint=checkpoint)
    net.partial_fit(SAMPLES, epochs=epochs)
    return noted


with tempfile.TemporaryDirectory() as folder:
    expected = read(folder, 2)[6:]
    read(folder, 1)
    observed = read(folder, 1, resume=True)
print(f"observed: resumed after the first of two epochs, it reads the samples {observed}")
print(f"expected: {expected}, as without a stop")
sys.exit(observed != expected)
