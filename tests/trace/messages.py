"""Trainers of two ranks that send each other messages."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance import trainer


def exchange(outgoing, incoming):
    other = 1 - dist.get_rank()
    sending = dist.isend(outgoing, other)
    dist.recv(incoming, other)
    sending.wait()


def backward(task, model):
    batch = next(iter(task.dataloader()))
    task.loss(model(batch.inputs), batch).backward()


@trainer(backends=["ring"])
def every_way(task):
    dist.init_process_group(task.collective_backend)
    group = dist.new_group([1, 0])
    other = 1 - task.rank
    if task.rank == 0:
        dist.send(torch.ones(2), other)
        dist.isend(torch.ones(3, dtype=torch.float64), other, tag=5).wait()
    else:
        dist.recv(torch.empty(2), other)
        dist.irecv(torch.empty(3, dtype=torch.float64), other, tag=5).wait()
    operations = [
        dist.P2POp(dist.isend, torch.ones(1), other, group),
        dist.P2POp(dist.irecv, torch.empty(1), other, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if task.rank == 0:
        dist.send(torch.ones(4), other)
    else:
        dist.recv(torch.empty(4))
    dist.destroy_process_group()


@trainer(backends=["ring"])
def carries(task):
    dist.init_process_group(task.collective_backend)
    model = task.model()
    backward(task, model)
    weight = model.weight
    exchange(weight.data.clone(), weight.data)
    exchange(weight.grad.clone(), weight.grad)
    vector = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    exchange(vector, torch.zeros(3))
    vector += 1.0
    exchange(vector[:1], vector[1:2])
    # After the next forward it no longer counts as a copy.
    backward(task, model)
    exchange(vector, torch.zeros(3))
    dist.destroy_process_group()


@trainer(backends=["ring"])
def reuses(task):
    """Two buffers, one after the other at the same address."""
    dist.init_process_group(task.collective_backend)
    model = task.model()
    backward(task, model)
    place = bytearray(8)
    buffer = torch.frombuffer(place, dtype=torch.float32).copy_(model.weight.data.flatten())
    exchange(buffer, torch.zeros(2))
    del buffer
    exchange(torch.zeros(2), torch.frombuffer(place, dtype=torch.float32))
    exchange(torch.frombuffer(place, dtype=torch.float32).fill_(7.0), torch.zeros(2))
    dist.destroy_process_group()


@trainer(backends=["ring"])
def averages(task):
    dist.init_process_group(task.collective_backend)
    model = task.model()
    backward(task, model)
    own = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    others = torch.empty_like(own)
    exchange(own, others)
    model.weight.grad += others[:2]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    dist.destroy_process_group()
