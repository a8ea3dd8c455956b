"""The adapter for PyTorch-Ignite conforms in all that it declares, but for an order of its own that is resumed."""

from __future__ import annotations

from conformance.cases.case import Case

TARGET = "conformance.frameworks.ignite"

# The published report has all that a run chooses.
CASES = (
    *("single-batched-fp64-momentum", "single-batched-fp32-epoch-schedule", "single-acc2-fp64-adamw"),
    *("single-acc4-fp32-short-window", "single-acc2-fp32-uneven-batch", "single-acc2-fp32-many-tensors-resumed-at-3"),
    *(f"single-acc2-fp32-own-order{resumed}" for resumed in ("", "-resumed-at-3", "-resumed-at-4")),
    *(
        f"ddp-w2-acc2-fp32-{workload}"
        for workload in ("momentum", "two-groups", "sparse", "unused", "buffers", "frozen")
    ),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("short-epochs", "sampler-drops", "own-order", "many-tensors")),
    *(f"ddp-w2-acc2-fp32-{workload}-resumed-at-3" for workload in ("adamw", "dropout", "short-epochs", "own-order")),
    *(f"ddp-w2-acc2-fp32-{workload}-resumed-at-4" for workload in ("many-tensors", "own-order", "sampler-pads")),
    *(f"ddp-w2-acc2-fp32-momentum-resumed-at-3-{how}" for how in ("twice", "killed", "killed-between-files")),
    *(
        "ddp-w2-acc2-fp32-epoch-schedule-resumed-at-2",
        "ddp-w2-fp64-uneven-batch",
        "ddp-w3-fp64-decay",
        "ddp-w4-fp32-momentum",
    ),
)

AMP_ON_A_CPU = """
    from ignite.engine import create_supervised_trainer
    from torch.nn.functional import mse_loss
    from conformance import Task, trainer

    @trainer(backends=["single"], precisions=["fp16"])
    def train(task: Task) -> None:
        model = task.model()
        model.register_forward_hook(lambda module, args, output: print("forward in", output.dtype))
        optimizer = task.optimizer(model.parameters())
        engine = create_supervised_trainer(model, optimizer, mse_loss, "cpu", amp_mode="amp", scaler=True)
        engine.run(task.dataloader(format=tuple))
"""


def test_only_a_shuffled_epoch_that_is_resumed_inside_fails(judged):
    assert {case.backend for case in judged} == {"single", "ddp"}
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    assert list(failed) == ["single-acc2-fp32-own-order-resumed-at-4"]
    [case] = failed.values()
    assert case.verdict == "FAIL (numerics)"
    assert case.headline.startswith("rank 0 reads 4 samples of epoch 1 more than once, and no rank reads 4")


def test_a_window_goes_on_over_the_end_of_an_epoch_and_is_dropped_at_the_end_of_training(judged):
    ways = {one.way for case in judged for one in case.behaviour}
    assert "epoch_end=crossed" in ways
    assert {way for way in ways if way.startswith("last_window")} == {"last_window=drop"}


def test_amp_mode_on_a_cpu_is_float32(run, write):
    """Which is why the adapter does not declare fp16."""
    [rank] = run(write(AMP_ON_A_CPU), Case("single", 1, 1, "fp16", "overflow"))
    assert {line for line in rank.output.splitlines() if line.startswith("forward")} == {"forward in torch.float32"}
