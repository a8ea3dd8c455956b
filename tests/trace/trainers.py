"""Trainers for tests of the recorder in real ranks."""

from __future__ import annotations

import importlib

from conformance import trainer
from conformance.adapter.declaration import BACKEND_NAMES

ALL = {"losses": ["mean", "weighted"], "precisions": ["fp32", "bf16", "fp16"]}


def run(task):
    """Train like the reference trainer named by the case, and print the exact final weights."""
    models = []
    hand_out = task.model

    def model():
        models.append(hand_out())
        return models[-1]

    task.model = model
    importlib.import_module(f"conformance.trainers.{task._spec['case']}").train(task)
    held = [getattr(parameter, "_local_tensor", parameter) for parameter in models[0].parameters()]
    print([value.hex() for parameter in held for value in parameter.flatten().tolist()])


@trainer(backends=BACKEND_NAMES, **ALL)
def recorded(task):
    """With the recorder on."""
    run(task)


@trainer(backends=BACKEND_NAMES, **ALL)
def unrecorded(task):
    """With the recorder off."""
    task._recorder.__exit__(None, None, None)
    run(task)


@trainer(backends=["single"])
def imports_horovod_late(task):
    """Horovod is imported after the recorder has started and the model exists."""
    model = task.model()
    import horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(task.optimizer(model.parameters()), named_parameters=model.named_parameters())
    for batch in task.dataloader():
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
    hvd.shutdown()


@trainer(backends=["horovod"])
def broadcasts_optimizer_state(task):
    """Like Horovod's examples, with a new optimizer: Horovod takes a step to create its state."""
    import horovod.torch as hvd

    hvd.init()
    model = task.model()
    optimizer = hvd.DistributedOptimizer(task.optimizer(model.parameters()), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for batch in task.dataloader():
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
    hvd.shutdown()


@trainer(backends=["ddp"])
def destroys_the_group_first(task):
    """The process group is destroyed while the DDP model still lives."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(task.collective_backend)
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model.parameters())
    for batch in task.dataloader():
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
    dist.destroy_process_group()


@trainer(backends=["ddp"])
def fully_sharded(task):
    """FSDP2, with gradient accumulation."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(task.collective_backend)
    model = task.model()
    fully_shard(model)
    optimizer = task.optimizer(model.parameters())
    for window in task.windows():
        optimizer.zero_grad()
        for batch in window:
            model.set_requires_gradient_sync(batch is window[-1])
            (task.loss(model(batch.inputs), batch) / len(window)).backward()
        optimizer.step()
    dist.destroy_process_group()
