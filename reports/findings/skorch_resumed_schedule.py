"""skorch 1.4.0: a resumed schedule by batch continues at the number of epochs."""

import sys
import tempfile

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, Checkpoint, LRScheduler
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

SAMPLES = TensorDataset(torch.ones(4, 1), torch.ones(4, 1))


def rate(step):
    return 0.5**step


class Rates(Callback):
    """Records the learning rate of each step."""

    def on_train_begin(self, net, **kwargs):
        self.noted = []

    def on_batch_begin(self, net, **kwargs):
        self.noted.append(net.optimizer_.param_groups[0]["lr"])


def rates(folder, epochs, resume=False):
    checkpoint, noted = Checkpoint(monitor=None, dirname=folder), Rates()
    net = NeuralNet(
        torch.nn.Linear(1, 1),
        torch.nn.MSELoss,
        lr=1.0,
        batch_size=1,
        train_split=None,
        verbose=0,
        callbacks=[LRScheduler(LambdaLR, lr_lambda=rate, step_every="batch"), noted, checkpoint],
    ).initialize()
    if resume:
        net.load_params(checkpoint=checkpoint)
    net.partial_fit(SAMPLES, epochs=epochs)
    return noted.noted


with tempfile.TemporaryDirectory() as folder:
    expected = rates(folder, 2)[4:]
    rates(folder, 1)
    observed = rates(folder, 1, resume=True)
print(f"observed: resumed after the first of two epochs, its steps have the learning rates {observed}")
print(f"expected: {expected}, as without a stop")
sys.exit(observed != expected)
