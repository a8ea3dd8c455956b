"""FSDP2's parameters that no optimizer holds, or whose steps the model never sees."""

from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

from conformance.watch.judging.judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.verdict import verdict


@pytest.fixture
def alone():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def before(model):
    """The optimizer of tensors that sharding puts others in the place of."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    return optimizer


def after(model):
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def after_but_the_head(model):
    fully_shard(model)
    return torch.optim.SGD(model[:2].parameters(), lr=0.1)


def never_gathered_again(model):
    fully_shard(model)
    model.set_reshard_after_backward(False)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def gathered_by_hand(model):
    """As soon as the weights are others."""
    fully_shard(model)
    model.set_reshard_after_backward(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: model.reshard())
    return optimizer


@pytest.mark.parametrize(
    ("make", "expected", "says"),
    [
        (before, "DOES NOT CONFORM", None),
        (after, "CONFORMS", None),
        (never_gathered_again, "DOES NOT CONFORM", None),
        (gathered_by_hand, "CONFORMS", None),
        (after_but_the_head, "CONFORMS", "2."),
    ],
)
def test_parameters_of_fsdp2(tmp_path, alone, make, expected, says):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()):
        optimizer = make(model)
        for _ in range(5):
            model(torch.randn(6, 5)).square().mean().backward()
            optimizer.step()
            # Not the optimizer's, which may hold other tensors.
            model.zero_grad()
    judge = Judge()
    Reader(Path(tmp_path), judge).finish()
    findings = judge.finish()
    assert verdict(findings) == expected, findings
    assert ("watch/held" in {law for law, _ in findings.causes}) == (expected == "DOES NOT CONFORM")
    assert says is None or any(name.startswith(says) for name in findings.open["coverage.unheld"].says.values["names"])
