"""skorch: a `NeuralNet`, with `AccelerateMixin` (experimental) for ranks, accumulation or bf16."""

from typing import Any

from accelerate import Accelerator
from skorch import NeuralNet
from skorch.callbacks import Callback, Checkpoint, GradientNormClipping, LRScheduler
from skorch.hf import AccelerateMixin
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LambdaLR

from conformance import Task, trainer


# It supports neither a weighted loss nor a clip by value. On a CPU Accelerate's "fp16" trains in float32.
@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), clips=("norm",), schedules=("step", "epoch"),
         own_order=True, resume=True, requires=("skorch", "accelerate"))  # fmt: skip
def train(task: Task) -> None:
    class Accelerated(AccelerateMixin, NeuralNet): ...

    class SetEpoch(Callback):
        def on_epoch_begin(self, net: NeuralNet, **_: object) -> None:
            sampler.set_epoch(len(net.history) - 1)

    kind, model, sampler = NeuralNet, task.model(), task.global_sampler()
    settings: Any = {"train_split": None, "verbose": 0, "optimizer": lambda params, lr: task.optimizer(params)}
    settings |= {"iterator_train__shuffle": True} if task.own_order else {"iterator_train__sampler": sampler}
    if task.world_size > 1 or task.accumulation > 1 or task.precision == "bf16":
        task.leave_torchrun()
        # By default a schedule advances by the number of processes.
        steps: Any = {"gradient_accumulation_steps": task.accumulation, "step_scheduler_with_optimizer": False}
        steps["mixed_precision"] = "bf16" if task.precision == "bf16" else "no"
        kind, settings["accelerator"] = Accelerated, Accelerator(cpu=task.device.type == "cpu", **steps)
    rates = task.scheduler(task.optimizer(model.parameters())).lr_lambdas
    schedule = LRScheduler(LambdaLR, lr_lambda=rates, step_every="batch" if task.schedule_by == "step" else "epoch")
    clip = [GradientNormClipping(task.clip.threshold)] if task.clip else []
    checkpoint = Checkpoint(None, f_criterion=None, dirname=str(task.checkpoint_dir or task.resume_from or ""))
    callbacks = [SetEpoch(), schedule, *clip, *([checkpoint] if task.checkpoint_dir else [])]
    # Not a module: on a CPU Accelerate would wrap it in DDP, which rejects one without parameters.
    net = kind(model, lambda: mse_loss, batch_size=task.micro_batch_size, callbacks=callbacks, **settings).initialize()
    if task.resume_from is not None:
        net.load_params(checkpoint=checkpoint)
    net.partial_fit(task.dataset(), epochs=task.epochs_until_stop() - len(net.history))
