"""Keras 3 on torch: `fit` of a model around a torch module. Its guide has no `fit` for several processes."""

import itertools
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
from torch.utils.data import DataLoader, default_collate

from conformance import Task, Unsupported, trainer


# AdamW and Adagrad use eps in other places than torch.
@trainer(precisions=("fp64", "fp32"), losses=("mean", "weighted"), optimizers=("sgd",), schedules=("step", "epoch"),
         parameter_groups=(1,), unused_parameters=True, own_order=True, resume=True, requires=("keras",))  # fmt: skip
def train(task: Task) -> None:
    settings, rates = task.optimizer_settings.arguments, task.learning_rates
    if settings["momentum"] and len(set(rates)) > 1:
        raise Unsupported("momentum with a changing rate: Keras accumulates steps, torch gradients")
    if settings["weight_decay"] or settings["dampening"]:
        raise Unsupported("SGD with weight decay in the gradient, or with dampening")
    if task.loss_name == "weighted" and task.accumulation > 1:
        raise Unsupported("each micro-batch is divided by its own weight")

    class Regression(keras.Sequential):
        def train_step(self, data: object) -> object:
            number = next(micro_batches)
            self.stop_training = number == stop
            if number % task.accumulation:
                return super().train_step(data)
            with task.step(lambda: dict(module.module.named_parameters())):
                return super().train_step(data)

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> float:
            return rates[min(int(step) // length, len(rates) - 1)]  # Keras counts micro-batches.

    keras.config.set_floatx("float64" if task.precision == "fp64" else "float32")
    module, micro_batches, sampler = keras.layers.TorchModuleWrapper(task.model()), itertools.count(1), task.sampler()
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: sampler.set_epoch(epoch))]
    stop, per_epoch = (task.stop_after or 0) * task.accumulation, -(-len(sampler) // task.micro_batch_size)
    length = per_epoch if task.schedule_by == "epoch" else task.accumulation
    if folder := task.checkpoint_dir or task.resume_from:
        every: Any = stop if stop % per_epoch else "epoch"
        callbacks.append(keras.callbacks.BackupAndRestore(folder, every, delete_checkpoint=False))
    clip = {"global_clipnorm" if task.clip.kind == "norm" else "clipvalue": task.clip.threshold} if task.clip else {}
    clip |= {"gradient_accumulation_steps": task.accumulation} if task.accumulation > 1 else {}
    model = Regression([module])
    # By default, the weighted losses of a batch are divided by its number of samples.
    loss = keras.losses.MeanSquaredError("mean_with_sample_weight" if task.loss_name == "weighted" else "mean")
    model.compile(keras.optimizers.SGD(Schedule(), settings["momentum"], settings["nesterov"], **clip), loss)
    samples: Any = task.dataset(tuple)
    size = task.micro_batch_size if task.own_order else None
    data = default_collate(list(samples)) if size else [DataLoader(samples, task.micro_batch_size, sampler=sampler)]
    model.fit(*data, batch_size=size, epochs=task.epoch_count, callbacks=callbacks, verbose=0)
