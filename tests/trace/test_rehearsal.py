"""What a trainer does before it goes back to where it began is none of its training."""

import pytest

from conformance.trace.hindsight.lineage import without_rehearsals

START = [1.0, 0.0]


def lines(*shown, optimizers=1):
    """A forward and a step for each of these weights, which the forward shows; the step moves them to the next ones."""
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
    """With its steps; the model stays. A short last window may be dropped."""
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
        pytest.param([START, [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]], 2, id="it never goes back"),
        pytest.param([START, [2.0, 0.0], START, [3.0, 0.0], [4.0, 0.0]], 2, id="too many steps from there on"),
        pytest.param([START, [2.0, 0.0], [3.0, 0.0], START], 2, id="too few"),
        pytest.param([START, START, START, [2.0, 0.0]], 2, id="the weights have never moved before"),
    ],
)
def test_what_is_no_rehearsal(shown, planned):
    seen = lines(*shown)
    assert forwards(without_rehearsals(seen, planned, planned)) == list(range(len(shown)))
