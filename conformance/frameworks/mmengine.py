"""MMEngine's Runner. On a CPU, AmpOptimWrapper fails and `autocast` accepts only bf16: so fp16 is not supported."""

import os
import tempfile

import torch
from mmengine.dataset import DefaultSampler
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, _ParamScheduler
from mmengine.runner import Runner, autocast, find_latest_checkpoint
from torch.utils.data import DataLoader

from conformance import Batch, Task, Unsupported, trainer

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # Without it, torch 2.6 and later reject MMEngine's checkpoints.
CLIP = {"norm": "max_norm", "value": "clip_value"}


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), requires=("mmengine",), buffers=True,
         sparse=True, own_order=True, schedules=("step", "epoch"), resume=True, elastic=True, survives_kill=True,
         unused_parameters=True)  # fmt: skip
def train(task: Task) -> None:
    # Only the loop by iterations restores its position within an epoch.
    by_epoch = not (task.checkpoint_dir or task.resume_from)
    if task.schedule_by == "epoch" and not by_epoch:
        raise Unsupported("a schedule by epoch in resumed training: only its loop by iterations can resume")

    class Regression(BaseModel):
        def forward(self, *batch: torch.Tensor, mode: str) -> dict[str, torch.Tensor]:
            with autocast(enabled=task.precision == "bf16", dtype=torch.bfloat16):
                return {"loss": task.loss(self.model(batch[0]), Batch(*batch))}

    class Schedule(_ParamScheduler):
        def _get_value(self) -> list[float]:
            steps = 1 if self.by_epoch else task.accumulation  # MMEngine's own schedules count micro-batches.
            return [(*one.learning_rates, 0.0)[self.last_step // steps] for one in task.optimizer_settings.groups]

    if task.world_size > 1:
        torch.distributed.init_process_group(task.collective_backend)
    model = Regression()
    model.model = task.model()
    clip = task.clip and {"type": task.clip.kind, CLIP[task.clip.kind]: task.clip.threshold}
    wrapper = OptimWrapper(task.optimizer(model.parameters()), task.accumulation, clip)
    sampler = DefaultSampler(task.dataset()) if task.own_order else task.sampler()
    loader = DataLoader(task.dataset(tuple), task.micro_batch_size, sampler=sampler) if by_epoch else task.dataloader()
    iterations = task.stop_after * task.accumulation if task.stop_after else len(loader)
    loop = {"max_epochs": task.epoch_count} if by_epoch else {"max_iters": iterations}
    hook = {"type": "CheckpointHook", "by_epoch": False, "interval": task.accumulation if task.checkpoint_dir else -1}
    checkpoint = task.resume_from and find_latest_checkpoint(str(task.resume_from))
    with tempfile.TemporaryDirectory() as folder:
        Runner(
            model, str(task.checkpoint_dir or folder), loader, optim_wrapper=wrapper, log_level="ERROR",
            param_scheduler=Schedule(wrapper, "lr", by_epoch=task.schedule_by == "epoch"),
            launcher="pytorch" if task.world_size > 1 else "none", train_cfg={"by_epoch": by_epoch, **loop},
            # By default, DDP gets the number of a GPU.
            cfg={"model_wrapper_cfg": {"device_ids": None, "find_unused_parameters": task.unused_parameters}},
            default_hooks={"checkpoint": hook}, resume=bool(checkpoint), load_from=checkpoint).train()  # fmt: skip
