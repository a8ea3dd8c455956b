"""Tests the apex.amp observer against a stand-in, because PyPI lacks apex and its amp needs a GPU.

The stand-in's modules, functions and signatures are those of NVIDIA/apex at commit
e13873debc4699d39c6861074b9a3b2a02327f92 (apex/amp/__init__.py, handle.py, frontend.py, _initialize.py,
_process_optimizer.py, _amp_state.py). It scales the loss, unscales gradients and skips steps as these tests need.
"""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

MODULES = {
    "apex/__init__.py": "from . import amp",
    "apex/amp/__init__.py": """
        from .handle import scale_loss
        from .frontend import initialize
    """,
    "apex/amp/_amp_state.py": """
        class AmpState(object):
            pass

        _amp_state = AmpState()
    """,
    "apex/amp/_initialize.py": """
        from ._amp_state import _amp_state

        class LossScaler(object):
            _loss_scale = 1024.0

            def loss_scale(self):
                return self._loss_scale

        class AmpOptimizerState(object):
            already_patched = False

        def _initialize(models, optimizers, properties, num_losses=1, cast_model_outputs=None):
            for optimizer in optimizers if isinstance(optimizers, list) else [optimizers] if optimizers else []:
                optimizer._amp_stash = AmpOptimizerState()
            _amp_state.loss_scalers = [LossScaler() for _ in range(num_losses)]
            return models, optimizers
    """,
    "apex/amp/frontend.py": """
        from ._initialize import _initialize
        from ._amp_state import _amp_state

        class Properties(object):
            enabled = False

        def initialize(models, optimizers=None, enabled=True, opt_level="O1", cast_model_type=None,
                       patch_torch_functions=None, keep_batchnorm_fp32=None, master_weights=None, loss_scale=None,
                       cast_model_outputs=None, num_losses=1, verbosity=1, min_loss_scale=None,
                       max_loss_scale=2.**24):
            _amp_state.opt_properties = Properties()
            if not enabled:
                return models if optimizers is None else (models, optimizers)
            _amp_state.opt_properties.enabled = True
            return _initialize(models, optimizers, _amp_state.opt_properties, num_losses, cast_model_outputs)
    """,
    "apex/amp/handle.py": """
        import contextlib
        from ._amp_state import _amp_state

        @contextlib.contextmanager
        def scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, delay_overflow_check=False):
            if not hasattr(_amp_state, "opt_properties"):
                raise RuntimeError("Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized.")
            if not _amp_state.opt_properties.enabled:
                yield loss
                return
            optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
            loss_scaler = _amp_state.loss_scalers[loss_id]
            scale = loss_scaler.loss_scale()
            yield loss.float() * scale
            if delay_unscale:
                return
            should_skip = False
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad.div_(scale)
                        should_skip = should_skip or not bool(parameter.grad.isfinite().all())
            if not should_skip:
                return
            loss_scaler._loss_scale = scale / 2
            for optimizer in optimizers:
                if not optimizer._amp_stash.already_patched:
                    def patch_step(opt):
                        opt_step = opt.step
                        def skip_step(closure=None):
                            opt.step = opt_step
                            opt._amp_stash.already_patched = False
                        return skip_step
                    optimizer.step = patch_step(optimizer)
                    optimizer._amp_stash.already_patched = True
    """,
}


@pytest.fixture(autouse=True)
def standin(tmp_path, monkeypatch):
    """Makes the stand-in importable during a test."""
    for path, text in MODULES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        del sys.modules[name]


def trained(recording, amp, *, several=False, enabled=True, **how):
    """Trains one window of two micro-batches with `amp` or an object with its functions; returns the model."""
    model = recording.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    model, optimizer = amp.initialize(model, [optimizer] if several else optimizer, enabled=enabled)
    for batch in recording.task.dataloader():
        with amp.scale_loss(recording.task.loss(model(batch.inputs), batch), optimizer, **how) as scaled_loss:
            scaled_loss.backward()
    return model


@pytest.mark.parametrize("delays", [True, False])
def test_what_is_noted(record, delays):
    """Both events have the call's arguments; apex's own unscaling is no change of gradients by hand."""
    recording = record(accumulation=2 if delays else 1, size=4 if delays else 8, steps=1)
    from apex import amp

    trained(recording, amp, several=True, **({"delay_unscale": True} if delays else {}))
    recording.recorder.look()
    entered, left = (recording.of_kind(f"scale_loss_{end}") for end in ("enter", "exit"))
    assert recording.kinds("apex_initialize", "scale_loss_enter", "scale_loss_exit", "gradient_change") == [
        "apex_initialize",
        *["scale_loss_enter", "scale_loss_exit"] * (2 if delays else 1),
    ]
    [initialize] = recording.of_kind("apex_initialize")
    assert (initialize["models"], initialize["optimizers"]) == (1, 1)
    for event in entered + left:
        assert (event["delay_unscale"], event["optimizers"], event["scale"]) == (delays, 1, 1024.0)
        assert event["where"][2] == "trained"
    assert {event["scale_after"] for event in left} == {1024.0}
    assert {event["scaled"] for event in recording.of_kind("backward_end")} == {1024.0}


def test_a_skip(record):
    """A skip is noted once, at the step call, although no torch step runs; the next step is a real one."""
    recording = record(size=8, steps=1)
    from apex import amp

    model = recording.task.model()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.125))
    before = model.weight.detach().clone()
    [batch] = recording.task.dataloader()
    for factor in (float("inf"), float("inf"), 1.0):
        optimizer.zero_grad()
        with amp.scale_loss(recording.task.loss(model(batch.inputs), batch) * factor, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)
    assert recording.kinds("scale_loss_exit", "skip", "step") == [
        *["scale_loss_exit", "skip"] * 2,
        *["scale_loss_exit", "step"],
    ]
    scales = [(event["scale"], event["scale_after"]) for event in recording.of_kind("scale_loss_exit")]
    assert scales == [(1024.0, 512.0), (512.0, 256.0), (256.0, 256.0)]
    skips = recording.of_kind("skip")
    assert [event["scale"] for event in skips] == [1024.0, 512.0]
    assert [event["gradients_finite"] for event in skips] == [False, False]
    assert [event["forwards"] for event in skips] == [1, 2]
    assert skips[0]["weights"][: before.numel()] == before.flatten().tolist()


def test_two_overflows_before_one_step(record):
    """Without `delay_unscale`, each pass of a window may overflow, but only one step is skipped."""
    recording = record(accumulation=2, size=4, steps=1)
    from apex import amp

    model = recording.task.model()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.125))
    for batch in recording.task.dataloader():
        loss = recording.task.loss(model(batch.inputs), batch) * float("inf")
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    optimizer.step()
    assert recording.kinds("scale_loss_exit", "skip", "step") == ["scale_loss_exit", "scale_loss_exit", "skip"]
    assert [event["scale"] for event in recording.of_kind("skip")] == [1024.0]


def test_it_changes_nothing(record):
    from apex import amp

    recording = record(size=8, steps=1)
    watched = trained(recording, amp)
    recording.recorder.__exit__(None, None, None)
    unwatched = trained(recording, amp)
    assert torch.equal(watched.weight.grad, unwatched.weight.grad)
    assert recording.kinds("scale_loss_enter") == ["scale_loss_enter"]


def test_names_imported_before_the_recorder_starts(record):
    """A trainer may import `scale_loss` itself long before anything is recorded."""
    from apex.amp import initialize, scale_loss

    class Amp:
        pass

    Amp.initialize, Amp.scale_loss = staticmethod(initialize), staticmethod(scale_loss)
    recording = record(size=8, steps=1)
    trained(recording, Amp)
    assert len(recording.of_kind("apex_initialize")) == len(recording.of_kind("scale_loss_exit")) == 1


def test_disabled(record):
    """A disabled apex initialises nothing and has no scale."""
    recording = record(size=8, steps=1)
    from apex import amp

    trained(recording, amp, enabled=False)
    assert recording.of_kind("apex_initialize") == []
    assert [event["scale"] for event in recording.of_kind("scale_loss_enter")] == [None]
    assert [event["scaled"] for event in recording.of_kind("backward_end")] == [None]


@pytest.mark.parametrize(
    ("is_initialized", "error", "kinds"),
    [(False, RuntimeError, []), (True, MemoryError, ["scale_loss_enter"])],
)
def test_errors_propagate_unchanged(record, is_initialized, error, kinds):
    """Apex's own error before `initialize`, and the trainer's error inside."""
    recording = record()
    from apex import amp

    if is_initialized:
        amp.initialize(torch.nn.Linear(2, 1))
    with pytest.raises(error), amp.scale_loss(torch.ones(1), []):
        raise MemoryError
    assert recording.kinds("scale_loss_enter", "scale_loss_exit") == kinds
