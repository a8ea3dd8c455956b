"""Keras 3.15.1 on torch: with `set_floatx("float64")` the loss, and so each gradient, is rounded to float32."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

keras.config.set_floatx("float64")
outputs = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
loss = keras.losses.MeanSquaredError()(torch.ones(3, 1, dtype=torch.float64), outputs)
loss.backward()
gradient = outputs.grad[0].item()

print(f"observed: the loss is {loss.dtype}, the gradient {gradient:.16f}")
print(f"expected: the loss is torch.float64, the gradient {-2 / 3:.16f}")
sys.exit(abs(gradient + 2 / 3) > 1e-15)
