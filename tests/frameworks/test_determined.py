"""The adapter for Determined conforms in all that it supports, except five behaviours of Determined."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.laws.law import laws
from conformance.runner.front.client import ForkServer

from .published import published, reasons, telling

TARGET = "conformance.frameworks.determined"

CASES = telling("determined")

# Laws of apex, which needs CUDA, shards, checkpoints, schedules by epoch, loss scales by hand, and the one of a
# gradient norm that is only observed.
NOT_CHECKED = {
    *("apex/delay-unscale", "apex/one-optimizer", "apex/step-in-skip-synchronize", "apex/synchronize-in-scale-loss"),
    *("ddp/wrap-after-apex", "amp/unscale-before-inspection", "clip/norm-of-all-shards"),
    *("acc/schedule-per-epoch", "amp/scale-as-set", "amp/scale-restored"),
    "save/one-writer",
}

# The adapter's trial with other methods, `{methods}`, in the adapter's loop.
TRIAL = """
    from types import SimpleNamespace

    from determined import pytorch
    from determined.pytorch import _experimental, _pytorch_context

    from conformance import Batch, Task, trainer
    from conformance.frameworks import determined as adapter
    from conformance.frameworks.determined import Regression

    class Trial(Regression):
        {methods}

    @trainer(backends=["single", "ddp"], precisions=["fp32", "fp16"])
    def train(task: Task) -> None:
        {before}
        adapter.Regression = Trial
        adapter.train(task)
"""

AUTOMATIC = """
        def __init__(self, context, task):
            self.context, self.task = context, task
            context.experimental.use_amp()
            self.model = context.wrap_model(task.model())
            self.optimizer = context.wrap_optimizer(task.optimizer(self.model.parameters()))

        def train_batch(self, batch, epoch_idx, batch_idx):
            batch = Batch(*batch)
            outputs = self.model(batch.inputs)
            loss = self.task.loss(outputs, batch)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, self.task.clip_ if self.task.clip else None)
            return {"loss": loss}
"""
# Names that `use_amp` takes from torch.cuda.amp, for the CPU.
AMP_OF_THE_CPU = """
        amp = SimpleNamespace(GradScaler=task.grad_scaler, autocast=task.autocast)
        _experimental.amp = _pytorch_context.amp = amp
"""

UPDATE_IN_EVERY_BATCH = """
        def train_batch(self, batch, epoch_idx, batch_idx):
            batch = Batch(*batch)
            with self.task.autocast():
                loss = self.task.loss(self.model(batch.inputs), batch)
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return {"loss": loss}
"""

SCHEDULED = """
        def __init__(self, context, task):
            super().__init__(context, task)
            context.lr_schedulers.clear()
            context.wrap_lr_scheduler(
                task.scheduler(self.optimizer), pytorch.LRScheduler.StepMode.{mode}, frequency={frequency}
            )
"""

NOT_AVERAGED = """
        def __init__(self, context, task):
            super().__init__(context, task)
            context.optimizers.clear()
            self.optimizer = context.wrap_optimizer(self.optimizer, average_aggregated_gradients=False)

        def train_batch(self, batch, epoch_idx, batch_idx):
            batch = Batch(*batch)
            loss = self.task.loss(self.model(batch.inputs), batch){divided}
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, self.clip if self.task.clip else None)
            return {{"loss": loss}}
"""

APEX = """
        def __init__(self, context, task):
            super().__init__(context, task)
            context.configure_apex_amp(self.model, self.optimizer)
"""


@pytest.fixture
def trial(write):
    """Writes a trainer whose trial has other methods; returns its target."""

    def write_trial(methods, before="pass"):
        return write(TRIAL.replace("{methods}", methods.strip()).replace("{before}", before.strip()))

    return write_trial


@pytest.fixture
def crash():
    """Runs one case, in which rank 0 must raise; returns its error."""

    def run_case(target, case):
        with ForkServer(target, backend=case.backend) as server:
            [rank] = server.run(case.spec(), time_limit=60.0).ranks
        [raised] = [event for event in rank.events if event["event"] == "raised"]
        return f"{raised['type']}: {raised['message']}"

    return run_case


def test_verdicts_are_those_of_the_published_report(judged):
    found = {case.id: reasons(case) for case in judged}
    assert found == published("determined", found)


def test_every_law_of_its_guide_was_checked_and_but_for_one_holds(judged):
    """Seed 003's chapters: aggregation, native AMP, DDP and Horovod. Those of apex need CUDA."""
    checked = {law for case in judged for law in case.laws}
    assert {law.id for law in laws()} - checked == NOT_CHECKED


def test_use_amp_on_a_cpu_is_float32(run, trial):
    """So the adapter uses its own scaler and autocast."""
    [rank] = run(trial(AUTOMATIC), Case("single", 1, 1, "fp16", "momentum"))
    assert "loss_scaled" not in {event["event"] for event in rank.events}
    assert {event["scale"] for event in rank.events if event["event"] == "step"} == {None}


@pytest.mark.parametrize(("backend", "world_size"), [("single", 1), ("ddp", 2)])
def test_use_amp_keeps_its_laws_where_it_has_amp(run, trial, backend, world_size):
    """In every window: scale each loss, unscale, clip, step, update; never in another order."""
    case = Case(backend, world_size, 2, "fp16", "clip-value")
    watched = ("loss_scaled", "backward_begin", "unscale", "clip", "scaler_step", "step", "update")
    window = ["loss_scaled", "backward_begin"] * 2 + ["unscale", "clip", "scaler_step", "step", "update"]
    for rank in run(trial(AUTOMATIC, AMP_OF_THE_CPU), case):
        assert [event["event"] for event in rank.events if event["event"] in watched] == window * case.spec()["steps"]


def test_the_guides_update_in_every_batch_fails_under_aggregation(crash, trial):
    """So the adapter updates the scaler once per window."""
    message = crash(trial(UPDATE_IN_EVERY_BATCH), Case("single", 1, 2, "fp16", "momentum"))
    assert message == "AssertionError: No inf checks were recorded prior to update."


@pytest.mark.parametrize(
    ("mode", "frequency", "steps"),
    [
        ("STEP_EVERY_OPTIMIZER_STEP", 1, 1),
        # It says "every N optimizer steps" but counts micro-batches: with 2 per step, N = 2 means every step.
        ("STEP_EVERY_OPTIMIZER_STEP", 2, 1),
        ("STEP_EVERY_BATCH", 1, 2),
    ],
)
def test_how_often_a_schedule_steps_in_a_window_of_two(run, trial, mode, frequency, steps):
    """So the adapter uses the first."""
    target = trial(SCHEDULED.format(mode=mode, frequency=frequency))
    [rank] = run(target, Case("single", 1, 2, "fp32", "momentum"))
    scheduled = [event for event in rank.events if event["event"] == "schedule" and not event["initial"]]
    assert len(scheduled) == steps * sum(event["event"] == "step" for event in rank.events)


@pytest.mark.parametrize(("divided", "factor"), [(" / task.accumulation", 1), ("", 2)])
def test_average_aggregated_gradients_leaves_the_division_to_the_trial(run, trial, divided, factor):
    target = trial(NOT_AVERAGED.format(divided=divided.replace("task", "self.task")))
    case = Case("single", 1, 2, "fp32", "momentum")
    [averaged], [left] = (
        [next(event["gradients"] for event in rank.events if event["event"] == "step") for rank in run(name, case)]
        for name in (TARGET, target)
    )
    assert left == [factor * gradient for gradient in averaged]


def test_apex_is_refused_without_cuda(crash, trial):
    message = crash(trial(APEX), Case("single", 1, 1, "fp32", "momentum"))
    assert message == "InvalidExperimentException: context.configure_apex_amp is supported only on GPU slots."
