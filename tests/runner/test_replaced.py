"""The recorder calls original functions even if a trainer replaces them, or reports the replacement."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer

LIMIT = 60.0

REPLACED = """
import builtins

def broken(*arguments, **options):
    raise RuntimeError("not yours")
"""
REPLACEMENTS = {
    "raises": "torch.Tensor.tolist = torch.Tensor.numpy = torch.Tensor.flatten = broken",
    "falsifies": "torch.Tensor.tolist = lambda self: [0.0]",
    "is nothing": "torch.Tensor.flatten = torch.Tensor.untyped_storage = None",
    "of its memory": "torch.UntypedStorage.data_ptr = torch.UntypedStorage.nbytes = broken",
    "of files": "os.getcwd = os.path.abspath = os.path.isfile = broken",
    "built in": "builtins.sum = builtins.sorted = broken",
}


def recorded(server, spec):
    """The events and weights that the recorder read."""
    (rank,) = server.run(spec, LIMIT).ranks
    assert (rank.finished, rank.exit) == (True, "exited 0"), (rank.exit, rank.output)
    return [(event["event"], event.get("weights")) for event in rank.events]


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_replacements_on_import(write, make_spec, how):
    spec = make_spec("single", 1)
    # The trainer's own code uses none of these.
    with (
        ForkServer(write(), "single") as plain,
        ForkServer(write("", REPLACED + REPLACEMENTS[how]), "single") as server,
    ):
        assert recorded(server, spec) == recorded(plain, spec)


def test_the_trainers_own_calls_reach_its_replacement(write, ran):
    """Also calls within a function that the recorder observes."""
    before = """
    tolist, read = torch.Tensor.tolist, []
    torch.Tensor.tolist = lambda self: read.append(1) or tolist(self)

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].tolist()
            return super().step(closure)
    """
    inside = """
    own = Own(model.parameters(), lr=0.125)
    for _ in range(2):
        own.step()
    print(len(read))
    """
    (rank,) = ran(write(inside, before), "single").ranks
    assert rank.output == "2\n"


def test_a_replacement_during_training_is_named(write, ran):
    """The recorder does not look for replacements during training, so the observer fails."""
    (rank,) = ran(write("torch.Tensor.tolist = broken", REPLACED), "single").ranks
    [failed, *_] = [event for event in rank.events if event["event"] == "observer_failed"]
    assert failed["replaced"] == ["torch.Tensor.tolist"]


@pytest.mark.parametrize("name", ["len", "isinstance", "getattr", "id", "type", "next", "str", "issubclass"])
def test_a_builtin_replaced_during_training_is_named(write, make_spec, name):
    """The code that reports an exception or switches an observer off does not call it."""
    with ForkServer(
        write(f"builtins.{name} = broken\nlen([]), next(iter([1])), issubclass(int, int)", REPLACED), "single"
    ) as server:
        (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
    said = [f"{event.get('replaced')} {event.get('message')}" for event in rank.events]
    assert any(f"builtins.{name}" in words for words in said), (rank.exit, rank.output)
    assert "exited 70" not in rank.exit
