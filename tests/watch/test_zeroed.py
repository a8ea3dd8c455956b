"""Steps whose gradients are all zero, on one rank or on all."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, gradients, sketches, total


def zeros():
    return [0 * gradient for gradient in gradients(0)]


def test_zeros_in_place_of_what_was_computed():
    script = Script()
    for _ in range(3):
        script.backward()
        script.step([zeros()] * 2)
        script.clear()
    findings = script.findings()
    assert (verdict(findings), [*findings.open], findings.conserved) == ("UNDECIDED", ["clearing.zeroed"], 0)


def test_gradients_that_cancel_over_the_ranks():
    script = Script()
    for step in range(3):
        computed = gradients(step)
        for rank, stream in enumerate(script.streams):
            begins = records.Backward(step + 1, None, [], None, script.versions, False, False, False, LINE)
            own = [-one if rank else one for one in computed]
            stream += [begins, records.Local(step + 1, script.numbers, [], "float32", sketches(own))]
        script.step([zeros()] * 2)
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.conserved) == ("CONFORMS", 6)


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_rank_whose_shards_have_no_elements(is_summed):
    """Each parameter is cut into two, of which the second is empty: that rank has nothing to lose."""
    script = Script()
    for rank, stream in enumerate(script.streams):
        stream[1:-1] = [
            records.Parameter(n, list(shape), "float32", 2, f"p{n}", rank) for n, shape in enumerate(script.shapes)
        ]
    for step in range(3):
        computed = [gradients(10 * step + rank) for rank in range(2)]
        for rank, stream in enumerate(script.streams):
            begins = records.Backward(step + 1, None, [], None, script.versions, False, False, False, LINE)
            cut = [part for one in computed[rank] for part in sketches([one, torch.zeros_like(one)])]
            stream += [begins, records.Local(step + 1, script.numbers, [], "float32", cut)]
        script.step([total(computed, 1.0 if is_summed else 0.5), zeros()])
        script.clear()
    findings = script.findings()
    assert [*findings.open] == ["ranks.sum"] * is_summed
    assert findings.conserved == (3 if is_summed else 6)
