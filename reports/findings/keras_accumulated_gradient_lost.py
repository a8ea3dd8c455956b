"""Keras 3.15.1 on torch: a variable without a gradient in the last micro-batch loses the gradients of its window."""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

warnings.simplefilter("ignore")
first, second = keras.Variable([0.0]), keras.Variable([0.0])
optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
# Like two experts, one per micro-batch.
optimizer.apply([torch.tensor([-1.0]), None], [first, second])
optimizer.apply([None, torch.tensor([-1.0])], [first, second])
weights = [float(variable.value[0]) for variable in (first, second)]

print(f"observed: after a window in which each variable had the gradient -1 once, they are {weights}")
print("expected: both are 0.5, the learning rate by the mean over two micro-batches")
sys.exit(weights != [0.5, 0.5])
