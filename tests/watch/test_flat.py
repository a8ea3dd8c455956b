"""Parameters that an optimizer steps as ranges of a flat tensor, as DeepSpeed's ZeRO has it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.trace.state.deepspeed import cuts
from conformance.trace.state.optimizers import Part
from conformance.watch import records
from conformance.watch.judging.judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.lines import decoded
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.verdict import verdict


def trained(folder, use, groups=1, every=1):
    """The verdict on a model whose optimizer steps flat tensors one after the other; `use` makes a gradient of one of
    the parameters'."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    parameters = list(model.parameters())
    Ledger.made(folder)
    with recorded(str(folder), Settings(every=every)) as recording:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        flats = []
        for group in range(groups):
            own = parameters[group::groups]
            flat = torch.nn.Parameter(torch.cat([one.detach().flatten() for one in own]))
            start = 0
            for one in own:
                part = Part(flat, start, one.numel(), 0, one.numel(), group)
                recording.parameters.divide(one, part, [(0, one.numel())], 0)
                start += one.numel()
            flats.append((flat, own))
        for _ in range(4):
            for _ in range(2):
                (model(torch.randn(6, 5)).square().mean() / 2).backward()
            for flat, own in flats:
                flat.grad = use(torch.cat([one.grad.flatten() for one in own]))
                optimizer.param_groups[0]["params"] = [flat]
                optimizer.step()
            for one in parameters:
                one.grad = None
    judge = Judge()
    Reader(Path(folder), judge).finish()
    return judge.finish()


@pytest.mark.parametrize(("groups", "every", "steps"), [(1, 1, 4), (2, 1, 8), (1, 2, 2), (2, 2, 4), (2, 3, 4)])
def test_ranges_of_a_flat_gradient_are_those_that_were_computed(tmp_path, groups, every, steps):
    findings = trained(tmp_path, lambda gradient: gradient, groups, every)
    assert (verdict(findings), findings.conserved) == ("CONFORMS", steps)


@pytest.mark.parametrize("use", [lambda gradient: gradient.roll(1), torch.abs], ids=["moved", "changed"])
def test_what_is_at_another_place_or_changed_is_not_conserved(tmp_path, use):
    assert trained(tmp_path, use).conserved == 0


def test_a_gradient_is_cut_where_the_ranks_parts_are(tmp_path):
    """Each piece of what is computed has the sketch of what the rank with that piece has of the flat gradient."""
    weight = torch.nn.Parameter(torch.ones(3, 3))
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()) as recording:
        torch.optim.SGD([weight], lr=0.1)
        recording.parameters.divide(weight, Part(torch.zeros(7), 2, 5, 4, 9, 0), [(0, 4), (4, 9)], 1)
        (weight * torch.arange(9.0).view(3, 3)).sum().backward()
    [file] = tmp_path.glob("*.jsonl")
    [local] = (one for one in map(decoded, file.read_bytes().splitlines()) if isinstance(one, records.Local))
    take, finish = recording.sketching.take, recording.sketching.finish
    assert local.sketches == pytest.approx(finish([take(torch.arange(4.0)), take(torch.arange(4.0, 9.0))]).numpy())


def test_where_the_parts_of_three_ranks_lie():
    """Parameters of 7 and 3 elements, filled up to three parts of 4."""
    flat = torch.zeros(12)
    wrapper = SimpleNamespace(parallel_partitioned_bit16_groups=[[flat[0:4], flat[4:8], flat[8:12]]])
    assert cuts(wrapper, flat[:7], Part(flat, 0, 4, 0, 7, 0)) == [(0, 4), (4, 7), (7, 7)]
    assert cuts(wrapper, flat[7:10], Part(flat, 0, 0, 0, 3, 0)) == [(0, 0), (0, 1), (1, 3)]
    with pytest.raises(ValueError, match="not in the flat tensor"):
        cuts(wrapper, torch.zeros(7), Part(flat, 0, 4, 0, 7, 0))
