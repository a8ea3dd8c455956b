"""PyTorch-Ignite 0.5.5, torch 2.13.0: LRScheduler skips the first learning rate of a schedule."""

import sys

import torch
from ignite.engine import Engine, Events
from ignite.handlers import LRScheduler
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, MultiStepLR, StepLR

SCHEDULES = {
    "StepLR(step_size=3)": lambda optimizer: StepLR(optimizer, step_size=3, gamma=0.5),
    "ExponentialLR": lambda optimizer: ExponentialLR(optimizer, gamma=0.5),
    "MultiStepLR": lambda optimizer: MultiStepLR(optimizer, milestones=[2], gamma=0.5),
    "LinearLR": lambda optimizer: LinearLR(optimizer, start_factor=0.5, total_iters=2),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, T_max=4),
}


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)


def by_torch(make):
    stepped, rates = optimizer(), []
    schedule = make(stepped)
    for _ in range(5):
        rates.append(stepped.param_groups[0]["lr"])
        stepped.step()
        schedule.step()
    return rates


def by_ignite(make):
    stepped, rates = optimizer(), []
    engine = Engine(lambda engine, batch: rates.append(stepped.param_groups[0]["lr"]) or stepped.step())
    # As in the example of LRScheduler.
    engine.add_event_handler(Events.ITERATION_STARTED, LRScheduler(make(stepped)))
    engine.run(range(5))
    return rates


wrong = False
for name, make in SCHEDULES.items():
    observed, expected = (list(map("{:.3g}".format, rates(make))) for rates in (by_ignite, by_torch))
    wrong |= observed != expected
    print(f"observed: {name:20} {' '.join(observed)}")
    print(f"expected: {name:20} {' '.join(expected)}, as in torch's own loop")
sys.exit(wrong)
