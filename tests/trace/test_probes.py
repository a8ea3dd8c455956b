"""Each seam of torch is patched in one place for both recorders."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest
import torch

import conformance
from conformance.trace.recorder import Recorder
from conformance.trace.seams import patching
from conformance.watch.ledger import Ledger
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded

from ..trainers.tasks import make_spec
from .test_restarts import LIFE

PACKAGE = Path(conformance.__file__).parent

LATE = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.eval_frame",
    "torch._dynamo.trace_rules",
    "torch.distributed.fsdp",
)
"""Modules whose seams are entered once they are imported."""


@pytest.fixture
def places(monkeypatch):
    """The lines of the package that have patched each seam."""
    found = defaultdict(set)

    def note(seam):
        frame = sys._getframe(2)
        while frame.f_code.co_filename == patching.__file__ or "<" in frame.f_code.co_name:
            frame = frame.f_back
        found[seam].add(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")

    def of_function(place, around):
        note(getattr(place.put, "args", None) or id(place.found))
        return replaced(place, around)

    def of_operators(arounds, namespace="c10d"):
        for name in arounds:
            note((namespace, name))
        return intercepted(arounds, namespace)

    replaced, intercepted = patching._replaced, patching.intercepted
    monkeypatch.setattr(patching, "_replaced", of_function)
    for module in [one for one in sys.modules.values() if getattr(one, "intercepted", None) is intercepted]:
        monkeypatch.setattr(module, "intercepted", of_operators)
    return found


def test_no_seam_is_patched_in_two_places(places, tmp_path):
    for module in LATE:
        import_module(module)
    for resume_from in (None, "/nowhere"):
        with Recorder([].append, make_spec(life={**LIFE, "resume_from": resume_from})):
            pass
    of_run = dict(places)
    places.clear()
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()):
        pass
    shared = {
        (torch.nn.Module, "zero_grad"),
        (torch.autograd, "_engine_run_backward"),
        (sys.modules[LATE[0]].ConvertFrameAssert, "__call__"),
    }
    assert shared <= of_run.keys() & places.keys()
    found = {seam: of_run.get(seam, set()) | places.get(seam, set()) for seam in of_run.keys() | places.keys()}
    assert {seam: lines for seam, lines in found.items() if len(lines) > 1} == {}


@pytest.mark.parametrize("hook", ["register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"])
def test_hooks_of_all_steps_are_registered_in_one_place(hook):
    files = [path for folder in ("trace", "watch") for path in (PACKAGE / folder).rglob("*.py")]
    assert [path.name for path in files if hook in path.read_text(encoding="utf-8")] == ["probes.py"]
