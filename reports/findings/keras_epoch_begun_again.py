"""Keras 3.15.1 on torch: BackupAndRestore repeats the whole epoch if it resumes inside one."""

import contextlib
import os
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

SAMPLES, STOP = 6, 4


def train(folder, interrupted):
    """The numbers of the batches that it trains on."""
    read = []

    def after(batch, logs):
        read.append(batch)
        if interrupted and len(read) == STOP:
            raise KeyboardInterrupt

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=STOP, delete_checkpoint=False)
    callbacks = [backup, keras.callbacks.LambdaCallback(on_train_batch_end=after)]
    ones = np.ones((SAMPLES, 1), dtype="float32")
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(ones, ones, batch_size=1, shuffle=False, callbacks=callbacks, verbose=0)
    return read


with tempfile.TemporaryDirectory() as folder:
    train(folder, interrupted=True)
    resumed = train(folder, interrupted=False)
expected = [*range(STOP, SAMPLES)]
print(f"observed: resumed after {STOP} of {SAMPLES} batches, it trains on the batches {resumed}")
print(f"expected: {expected}, the remaining ones")
sys.exit(resumed != expected)
