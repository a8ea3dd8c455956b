"""Lightning Fabric with a custom loop; Fabric shards the data by epoch, casts, averages, clips and saves."""

from itertools import chain, islice
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch.utils.data import DataLoader

from conformance import Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16", "fp16"), losses=("mean", "weighted"),
         own_order=True, resume=True, requires=("lightning",))  # fmt: skip
def train(task: Task) -> None:
    scaler = task.grad_scaler()
    precision: Any = {"fp64": "64-true", "fp32": "32-true", "bf16": "bf16-mixed"}.get(task.precision)
    # "16-mixed" becomes "bf16-mixed" on a CPU, and accepts no GradScaler.
    fp16 = MixedPrecision("16-mixed", task.device.type, scaler) if task.precision == "fp16" else None
    ranks: Any = {"devices": task.world_size, "strategy": "ddp" if task.world_size > 1 else "auto"}
    fabric = Fabric(accelerator=task.device.type, precision=precision, plugins=fp16, **ranks)
    fabric.launch()
    model, optimizer = fabric.setup(module := task.model(), task.optimizer(module.parameters()))
    scheduler = task.scheduler(optimizer)
    data = DataLoader(task.dataset(), task.micro_batch_size, task.own_order, None if task.own_order else task.sampler())
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "trained": 0}
    if task.resume_from is not None:
        fabric.load(task.resume_from / "checkpoint", state)
    loader: Any = fabric.setup_dataloaders(data)
    windows = chain.from_iterable(task.in_windows(loader) for _ in range(task.epoch_count))
    for window in islice(windows, state["trained"], task.stop_after):
        own: Any = sum(batch.weights.sum() for batch in window)
        weight: Any = fabric.all_reduce(own, reduce_op="sum")
        for batch in window:
            with fabric.no_backward_sync(model, enabled=batch is not window[-1]):
                fabric.backward(task.loss(model(batch.inputs), batch, reduction="sum") * (task.world_size / weight))
        if task.clip is not None:
            clip: Any = {"max_norm" if task.clip.kind == "norm" else "clip_val": task.clip.threshold}
            fabric.clip_gradients(model, optimizer, **clip, error_if_nonfinite=False)  # which would end training
        scale = scaler.get_scale()
        optimizer.step()
        optimizer.zero_grad()
        if scaler.get_scale() >= scale:
            scheduler.step()
    if task.checkpoint_dir is not None:
        fabric.save(task.checkpoint_dir / "checkpoint", {**state, "trained": task.stop_after})
