"""Two optimizers that step in turns, of whose windows some are looked at."""

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from conformance.watch.judging.judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.verdict import verdict


def watched(folder, every, *, clears=True, turns=1):
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 6), nn.Linear(6, 1)
    Ledger.made(folder)
    with recorded(str(folder), Settings(every=every)):
        of_generator, of_critic = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, critic)]
        for _ in range(24):
            of_critic.zero_grad()
            fake = generator(torch.randn(8, 4))
            (softplus(-critic(torch.randn(8, 6))) + softplus(critic(fake.detach()))).mean().backward()
            of_critic.step()
            for _ in range(turns):
                if clears:
                    of_generator.zero_grad()
                softplus(-critic(generator(torch.randn(8, 4)))).mean().backward()
                of_generator.step()
    judge = Judge()
    Reader(folder, judge).finish()
    return judge.finish()


@pytest.mark.parametrize("every", [1, 2, 5, 10])
@pytest.mark.parametrize("turns", [1, 2])
def test_gradients_that_were_used_in_windows_between(tmp_path, every, turns):
    findings = watched(tmp_path, every, turns=turns)
    assert (verdict(findings), findings.causes) == ("CONFORMS", {})


@pytest.mark.parametrize("every", [1, 2, 5])
def test_gradients_that_are_not_cleared(tmp_path, every):
    assert "watch/cleared" in {law for law, _ in watched(tmp_path, every, clears=False).causes}
