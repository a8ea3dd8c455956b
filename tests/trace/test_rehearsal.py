"""A rehearsal, before a return to the first weights, does not count as training."""

import pytest

from conformance.trace.hindsight.lineage import without_rehearsals

START = [1.0, 0.0]


def lines(*shown, optimizers=1):
    """A forward with each of these weights, and a step to the next ones."""
    found = [{"event": "model"}]
    for number, weights in enumerate(shown):
        after = shown[number + 1] if number + 1 < len(shown) else [9.0, 9.0]
        found += [{"event": "zero_grad"}, {"event": "forward", "forward": number, "weights": weights}]
        found += [{"event": "step", "step": 0, "weights": after, "optimizer": which} for which in range(optimizers)]
    return [{**line, "seq": seq} for seq, line in enumerate([*found, {"event": "finished"}])]


def forwards(seen):
    return [line["forward"] for line in seen if line["event"] == "forward"]


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_rehearsal_is_left_out(optimizers):
    """Its steps too, but not the model. A short last window may be dropped."""
    seen = lines(START, [2.0, 0.0], START, [3.0, 0.0], [4.0, 0.0], optimizers=optimizers)
    left = without_rehearsals(seen, 2, 3)
    assert forwards(left) == [2, 3, 4]
    assert [line["event"] for line in left].count("step") == 3 * optimizers
    assert [line["step"] for line in left if line["event"] == "step"] == list(range(3 * optimizers))
    assert left[0]["event"] == "model"


def test_two_rehearsals():
    seen = lines(START, [2.0, 0.0], START, [3.0, 0.0], START, [4.0, 0.0])
    assert forwards(without_rehearsals(seen, 2, 2)) == [4, 5]


@pytest.mark.parametrize(
    ("shown", "planned"),
    [
        pytest.param([START, [2.0, 0.0], START, [3.0, 0.0]], 4, id="as many steps as planned"),
        pytest.param([START, [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]], 2, id="no return"),
        pytest.param([START, [2.0, 0.0], START, [3.0, 0.0], [4.0, 0.0]], 2, id="too many steps after the return"),
        pytest.param([START, [2.0, 0.0], [3.0, 0.0], START], 2, id="too few steps after the return"),
        pytest.param([START, START, START, [2.0, 0.0]], 2, id="weights that have not moved"),
    ],
)
def test_not_a_rehearsal(shown, planned):
    seen = lines(*shown)
    assert forwards(without_rehearsals(seen, planned, planned)) == list(range(len(shown)))
