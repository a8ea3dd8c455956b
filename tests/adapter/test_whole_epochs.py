"""How many epochs an adapter trains whose framework saves at the end of an epoch alone."""

import pytest

from conformance import Unsupported
from conformance.adapter.task import Task
from conformance.frameworks.whole_epochs import epochs_until_stop

from ..trainers.tasks import make_spec


def stopped(after: int | None) -> Task:
    return Task({**make_spec(size=4, steps=1, epochs=[0] * 3), "life": {"stop_after": after}}, 0)


@pytest.mark.parametrize(("after", "epochs"), [(None, 3), (2, 1), (4, 2), (6, 3)])
def test_whole_epochs_are_counted(after, epochs):
    assert epochs_until_stop(stopped(after)) == epochs


def test_a_stop_inside_an_epoch_is_declined():
    with pytest.raises(Unsupported, match="inside an epoch"):
        epochs_until_stop(stopped(3))
