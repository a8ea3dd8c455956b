"""What lies on a GPU is read when it is written."""

import torch

from conformance.watch import records
from conformance.watch.lines import decoded, encoded
from conformance.watch.recording.output import Later, later, settle


def test_what_is_on_the_cpu_is_read_at_once():
    value = torch.tensor(2.0)
    read = later(float, value)
    value.mul_(2)
    assert read == 2.0


def test_what_is_elsewhere_is_not_waited_for():
    assert isinstance(later(float, torch.ones((), device="meta")), Later)


def test_it_is_read_when_the_record_is_written():
    record = records.Clipped("norm", [0], 1.0, Later(float, torch.tensor(3.0)), 1, None)
    settle(record)
    assert record == records.Clipped("norm", [0], 1.0, 3.0, 1, None)
    assert decoded(encoded(record).encode()) == record
