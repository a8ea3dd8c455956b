"""skorch 1.4.0: with AccelerateMixin and accumulation, GradientNormClipping clips after each micro-batch."""

import sys
from unittest import mock

import torch
from accelerate import Accelerator
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping
from skorch.callbacks.regularization import clip_grad_norm_
from skorch.hf import AccelerateMixin
from torch.utils.data import TensorDataset

ACCUMULATION = 4


class Net(AccelerateMixin, NeuralNet):
    pass


net = Net(
    torch.nn.Linear(1, 1),
    torch.nn.MSELoss,
    accelerator=Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION),
    callbacks=[GradientNormClipping(1.0)],
    batch_size=1,
    max_epochs=1,
    train_split=None,
    callbacks__print_log__sink=lambda line: None,
)
# One window of four micro-batches.
with mock.patch("skorch.callbacks.regularization.clip_grad_norm_", wraps=clip_grad_norm_) as clips:
    net.fit(TensorDataset(torch.ones(ACCUMULATION, 1), torch.ones(ACCUMULATION, 1)))

print(f"observed: gradients are clipped {clips.call_count} times in one window")
print("expected: once, after all of them have been added up")
sys.exit(clips.call_count != 1)
