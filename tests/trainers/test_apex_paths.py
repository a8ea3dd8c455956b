"""The reference trainers of apex, where it is not: they are found, they declare themselves, and they tell what to do.

What they do with apex is tried where apex and a GPU are: `nox -s apex`.
"""

from __future__ import annotations

import sys

import pytest

from conformance.adapter.loading import MissingRequirement, load, reference_names
from conformance.runner.front.client import ForkServer, Unavailable

TRAINERS = {"apex_single": "single", "apex_ddp": "ddp", "apex_horovod": "horovod"}
INSTALL = "git+https://github.com/NVIDIA/apex@e13873debc4699d39c6861074b9a3b2a02327f92"


#: Replaces any apex of this machine. NVIDIA's current apex has no amp, nor has PyPI's apex.
SURROUNDINGS = {
    "no apex": "raise ModuleNotFoundError(\"No module named 'apex'\", name='apex')",
    "an apex without amp": "",
}


@pytest.fixture(params=SURROUNDINGS, autouse=True)
def surroundings(request, tmp_path, monkeypatch):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text(SURROUNDINGS[request.param])
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("apex", None)


def test_they_have_bare_names():
    assert set(TRAINERS) <= set(reference_names())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_they_declare_is_known_without_apex(trainer):
    with pytest.raises(MissingRequirement) as caught:
        load(trainer)
    declaration = caught.value.declaration
    assert (declaration.name, declaration.backends) == (trainer, (TRAINERS[trainer],))
    assert declaration.precisions == ("apex-O1",)
    assert declaration.layouts == ("batched", "accumulated")
    assert "apex" in declaration.requires
    # Where a weight is tied, apex raises IndexError in the second use.
    assert {"many-tensors", "large-tensors"}.isdisjoint(declaration.models)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_missing_is_told_with_the_command_that_installs_it(trainer):
    with pytest.raises(Unavailable) as caught, ForkServer(trainer, TRAINERS[trainer]):
        pass
    assert caught.value.reason == "no apex with amp is installed, and amp needs a GPU"
    assert caught.value.command == f"pip install --no-build-isolation {INSTALL}"
    assert caught.value.declaration.name == trainer
