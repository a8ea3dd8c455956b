"""The large tensors are large enough: for several buckets of DDP's, and for more than Horovod's fusion buffer."""

from __future__ import annotations

import re

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer

from .tasks import of_kind

MEBIBYTE = 2**20


WITH_TIMELINE = """
import os
from conformance import Task, trainer
from conformance.trainers import horovod

@trainer(backends=["horovod"])
def train(task: Task) -> None:
    os.environ["HOROVOD_TIMELINE"] = {path!r}
    horovod.train(task)
"""


def events_of_rank_0(trainer, backend):
    case = Case(backend, 2, 1, "fp32", "large-tensors")
    with ForkServer(trainer, backend=backend) as server:
        outcome = server.run(case.spec(), time_limit=60.0)
    assert [rank.exit for rank in outcome.ranks] == ["exited 0"] * 2
    return outcome.ranks[0].events


def test_ddp_makes_three_buckets():
    """Once it has seen the gradients: in the first backward there is but one."""
    sent = [event["bytes"] for event in of_kind(events_of_rank_0("ddp", "ddp"), "collective") if event["reduce"]]
    first, *buckets = sent
    assert first == sum(buckets)
    assert len(buckets) == 3
    assert MEBIBYTE <= buckets[0] < buckets[1]
    assert buckets[1] >= 25 * MEBIBYTE


def test_the_gradients_pass_horovods_fusion_buffer(tmp_path):
    timeline, trainer = tmp_path / "timeline.json", tmp_path / "with_timeline.py"
    trainer.write_text(WITH_TIMELINE.format(path=str(timeline)))
    events_of_rank_0(str(trainer), "horovod")
    written = timeline.read_text()
    fused, averaged = (len(re.findall(f'"{name}"', written)) for name in ("MEMCPY_IN_FUSION_BUFFER", "ALLREDUCE"))
    # Ten tensors in each of two steps. The largest of them fits into no buffer.
    assert 0 < fused <= averaged - 2
    assert averaged == 20
