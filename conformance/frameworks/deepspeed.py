"""DeepSpeed's ZeRO in its stages, with accumulation, clipping, loss scale and schedule in the engine."""

from collections.abc import Callable
from itertools import islice

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import muon, stage3, stage_1_and_2  # noqa: F401  # by `initialize`: once for all ranks

from conformance import Task, trainer
from conformance.frameworks.deepspeed_settings import config

reference = trainer(
    backends=("deepspeed",), precisions=("fp32", "bf16", "fp16"), losses=("mean", "weighted"), clips=("norm",),
    resume=True, survives_kill=True, last_window="step", last_batch="use", requires=("deepspeed",),
)  # fmt: skip


def fit(task: Task, stage: int) -> None:
    deepspeed.init_distributed(dist_backend=task.collective_backend)
    model = task.model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=task.optimizer,
        lr_scheduler=task.scheduler,
        config=config(task, stage),
    )
    before = 0
    if task.resume_from is not None:
        _, saved = engine.load_checkpoint(task.resume_from)
        before = saved["done"]
    for done, window in enumerate(islice(task.windows(), before, task.stop_after), start=before + 1):
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Of the whole global batch, over all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)
            weight /= task.world_size
        for batch in window:
            # The engine counts to `accumulation` by itself; a window at the end of an epoch may be shorter.
            engine.set_gradient_accumulation_boundary(batch is window[-1])
            inputs = batch.inputs.to(next(model.parameters()).dtype)
            loss = task.loss(engine(inputs).to(task.dtype), batch, reduction="sum")
            engine.backward(loss * task.accumulation / weight)
            engine.step()
        if done in task.save_after:
            engine.save_checkpoint(task.checkpoint_dir, client_state={"done": done})
    dist.destroy_process_group()


def zero(stage: int) -> Callable[[Task], None]:
    def train(task: Task) -> None:
        fit(task, stage)

    train.__name__ = f"zero_{stage}"
    return reference(train)


zero_0, zero_1, zero_2, zero_3 = map(zero, range(4))
