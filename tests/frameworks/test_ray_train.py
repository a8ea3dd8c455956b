"""Ray Train's TorchTrainer conforms with accumulation; a loop without `prepare_model` does not."""

from __future__ import annotations

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer
from conformance.verdict.judge import judge

TARGET = "conformance.frameworks.ray_train"
# Few, because Ray Train starts about seven processes for each. `conformance run` runs them all.
CASES = ("ray-train-w2-acc2-fp16-overflow", "ray-train-w2-acc2-fp32-momentum-resumed-at-3")
# A second process would have its own server and cluster, for half of the cases.
PROCESSES = 1

ONE_RAISES = """
    from conformance import Job, Task, trainer
    from conformance.frameworks.ray_cluster import launch, local_cluster
    from conformance.frameworks.ray_train import fit

    def unlucky(task: Task) -> None:
        if task.rank == 1:
            raise ValueError("no such luck")
        fit(task)

    @trainer(backends=["ray-train"], launches_workers=True, session=local_cluster)
    def train(job: Job) -> None:
        launch(job, unlucky)
"""


def test_accumulation_conforms(judged):
    assert {case.id: case.headline for case in judged if not case.verdict.startswith("PASS")} == {}
    assert {case.id for case in judged} == set(CASES)


def test_mutant_is_caught(caught):
    caught("model_not_prepared")


def test_a_worker_that_raises_is_named(write):
    """Not those that Ray Train ends because of it."""
    case = Case("ray-train", 2, 1, "fp32", "momentum")
    with ForkServer(write(ONE_RAISES), backend="ray-train") as server:
        judgement = judge(case, server.run(case.spec(), time_limit=60.0))
    assert judgement.verdict == "CRASH"
    assert judgement.headline == "rank 1 raised ValueError: no such luck (trainer.py:8)"
