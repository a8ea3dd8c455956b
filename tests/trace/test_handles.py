"""Which asynchronous collectives nobody has waited for."""

import pytest
import torch

from conformance.trace.state.handles import Handles


class Handle:
    pass


class Issuing:
    """Issues what writes to `memory`, or elsewhere."""

    def __init__(self):
        self.handles = Handles()
        self.memory = torch.zeros(2)
        self.count = 0

    def issue(self, tensors=(), handle=None, group="world", **fields):
        handle = Handle() if handle is None else handle
        self.handles.issuing()
        self.handles.noted(self.count)
        self.handles.issued(handle, group, tensors, **fields)
        self.count += 1
        return handle

    @property
    def unfinished(self):
        return self.handles.unfinished([self.memory])


@pytest.fixture
def issuing():
    return Issuing()


def test_what_writes_to_the_same_memory(issuing):
    """Also through a view; not what is at the same address later."""
    issuing.issue([issuing.memory])
    issuing.issue([issuing.memory[1:]])
    issuing.issue([torch.zeros(2)])
    assert issuing.unfinished == {"unfinished": [0, 1], "unfinished_elsewhere": [2]}
    issuing.memory = torch.zeros(2)
    assert issuing.unfinished == {"unfinished_elsewhere": [0, 1, 2]}


@pytest.mark.parametrize("handle", [None, 7])
def test_waiting(issuing, handle):
    """For an object, or for one of Horovod's numbers; once and again."""
    handle = issuing.issue([issuing.memory], handle)
    issuing.handles.waited(handle)
    assert issuing.unfinished == {}
    issuing.handles.waited(handle)


def test_a_dropped_handle_is_never_waited_for(issuing):
    issuing.issue([issuing.memory])
    issuing.handles.waited(Handle())
    assert issuing.unfinished == {"unfinished": [0]}


def test_functional_collectives_are_waited_for_by_their_memory(issuing):
    """Through any view of it, and all that write to it; not those whose handle the trainer got."""
    for _ in range(2):
        issuing.handles.issuing()
        issuing.handles.noted(issuing.count)
        issuing.handles.issued(None, "world", [issuing.memory])
        issuing.count += 1
    issuing.issue([issuing.memory])
    issuing.handles.waited_for(torch.zeros(2))
    assert issuing.unfinished == {"unfinished": [0, 1, 2]}
    issuing.handles.waited_for(issuing.memory[1:])
    assert issuing.unfinished == {"unfinished": [2]}


def test_a_barrier_ends_what_came_before_it_in_its_group(issuing):
    issuing.issue([issuing.memory])
    issuing.issue([issuing.memory], group="other")
    barrier = issuing.issue(ends_all=True)
    issuing.issue([issuing.memory])
    issuing.handles.waited(barrier)
    assert issuing.unfinished == {"unfinished": [1, 3]}


def test_what_was_not_noted_is_unknown(issuing):
    """A backend may have operators that are not watched; a call that noted nothing has no number."""
    issuing.handles.noted(0)
    issuing.handles.issuing()
    issuing.handles.issued(Handle(), "world", [issuing.memory])
    assert issuing.unfinished == {}


def test_on_a_gpu_streams_decide(issuing):
    issuing.issue([torch.zeros(2, device="meta")])
    assert issuing.unfinished == {}
