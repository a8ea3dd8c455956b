"""Poutyne 1.19.0: resumed training uses the schedule's first learning rate for one epoch."""

import contextlib
import io
import sys
import tempfile

import torch
from poutyne import Callback, LambdaLR, ModelBundle
from torch.utils.data import DataLoader, TensorDataset

LOADER = DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)))


class Rates(Callback):
    """Records the learning rate of each epoch."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def on_train_batch_end(self, batch_number, logs):
        if batch_number == 1:
            self.noted.append(self.model.optimizer.param_groups[0]["lr"])


def rates(folder, epochs):
    network, noted = torch.nn.Linear(1, 1), Rates()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    bundle = ModelBundle.from_network(
        folder, network, optimizer=optimizer, loss_function=torch.nn.MSELoss(), monitoring=False
    )
    schedule = LambdaLR(lambda epoch: 0.5**epoch)
    with contextlib.redirect_stdout(io.StringIO()):
        bundle.train(
            LOADER, epochs=epochs, lr_schedulers=[schedule], callbacks=[noted], disable_tensorboard=True, verbose=False
        )
    return noted.noted


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    expected = rates(one, 4)[2:]
    rates(other, 2)
    observed = rates(other, 4)
print(f"observed: resumed after the second of four epochs, these have the learning rates {observed}")
print(f"expected: {expected}, as without a stop")
sys.exit(observed != expected)
