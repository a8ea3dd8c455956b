"""The adapter for Accelerate conforms in all that it declares, but for one thing that is Accelerate's."""

from __future__ import annotations

from conformance.cases.case import Case

TARGET = "conformance.frameworks.accelerate"

# The published report has all that a run chooses.
CASES = (
    *("single-batched-fp32", "single-acc2-fp32-weighted", "single-acc2-bf16-momentum", "single-acc2-fp32-own-order"),
    *("single-acc4-fp32-short-window", "single-acc4-fp64-uneven-batch", "single-acc2-fp32-short-epochs-resumed-at-3"),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("weighted", "clip-norm", "two-groups", "unused", "buffers")),
    *("ddp-w2-acc2-fp32-short-epochs", "ddp-w2-acc2-fp32-own-order", "ddp-w2-fp32-uneven-batch", "ddp-w3-acc2-fp64"),
    *(f"ddp-w2-acc2-fp32-{workload}-resumed-at-3" for workload in ("momentum", "adamw", "dropout")),
    *(f"ddp-w2-acc2-fp32-{workload}-resumed-at-4" for workload in ("many-tensors", "own-order")),
    *("ddp-w2-acc2-fp32-momentum-resumed-at-4-on-3-ranks", "single-acc2-fp32-many-tensors-resumed-at-4"),
)

FP16_ON_A_CPU = """
    from accelerate import Accelerator
    from conformance import Task, trainer

    @trainer(backends=["single"], precisions=["fp16"])
    def train(task: Task) -> None:
        accelerator = Accelerator(cpu=True, mixed_precision="fp16")
        model = task.model()
        model.register_forward_hook(lambda module, args, output: print("forward in", output.dtype))
        optimizer = task.optimizer(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, task.global_dataloader())
        for batch in loader:
            accelerator.backward(task.loss(model(batch.inputs), batch))
            optimizer.step()
            optimizer.zero_grad()
"""


def test_every_verdict(judged):
    """Known: `backward()` divides by `gradient_accumulation_steps` in a short last window too."""
    divided = {case.id for case in judged if is_divided_by_the_nominal_length(case)}
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    assert failed.keys() == divided
    assert {case.verdict for case in failed.values()} == {"FAIL (numerics)"}
    assert {case.id for case in failed.values() if case.explained_by == ("nominal-length",)} == divided
    assert {case.backend for case in judged} == {"single", "ddp"}


def test_last_batches_that_do_not_go_round_are_filled_up(judged):
    """By `even_batches`, with the first samples of the data set."""
    filled = {case.id for case in judged if "last_batch=pad" in [one.way for one in case.behaviour]}
    assert filled == {case.id for case in judged if case.workload == "uneven-batch" and case.backend == "ddp"}


def is_divided_by_the_nominal_length(case):
    short = case.workload in ("short-window", "short-epochs")
    return short or (case.workload, case.path) == ("uneven-batch", "single-acc4")


def test_fp16_on_a_cpu_is_float32(run, write):
    """Which is why the adapter does not declare fp16."""
    [rank] = run(write(FP16_ON_A_CPU), Case("single", 1, 1, "fp16", "overflow"))
    assert set(rank.output.splitlines()) == {"forward in torch.float32"}
    assert {event["scale"] for event in rank.events if event["event"] == "step"} == {None}
